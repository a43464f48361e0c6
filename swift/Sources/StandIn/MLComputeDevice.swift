import Foundation

/// Core ML's (MLCPUComputeDevice.h).
public final class MLCPUComputeDevice: NSObject, Sendable {}

/// Core ML's (MLGPUComputeDevice.h).
public final class MLGPUComputeDevice: NSObject, Sendable {}

/// Core ML's (MLNeuralEngineComputeDevice.h).
public final class MLNeuralEngineComputeDevice: NSObject, Sendable {}

/// Core ML's (CoreML.swiftinterface).
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
