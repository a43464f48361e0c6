import Foundation

/// The stand-in for Core ML's type (MLCPUComputeDevice.h).
public final class MLCPUComputeDevice: NSObject, Sendable {}

/// The stand-in for Core ML's type (MLGPUComputeDevice.h).
public final class MLGPUComputeDevice: NSObject, Sendable {}

/// The stand-in for Core ML's type (MLNeuralEngineComputeDevice.h).
public final class MLNeuralEngineComputeDevice: NSObject, Sendable {}

/// The stand-in for Core ML's type (CoreML.swiftinterface).
public enum MLComputeDevice: Equatable, Hashable, Sendable {
    case cpu(MLCPUComputeDevice)
    case gpu(MLGPUComputeDevice)
    case neuralEngine(MLNeuralEngineComputeDevice)

    init?(name: String) {
        switch name {
        case "cpu": self = .cpu(MLCPUComputeDevice())
        case "gpu": self = .gpu(MLGPUComputeDevice())
        case "ane": self = .neuralEngine(MLNeuralEngineComputeDevice())
        default: return nil
        }
    }
}
