import Foundation

/// The stand-in for Core ML's type (MLModelConfiguration.h).
public enum MLComputeUnits: Int, Sendable {
    case cpuOnly = 0
    case cpuAndGPU = 1
    case all = 2
    case cpuAndNeuralEngine = 3
}

/// The stand-in for Core ML's type (CoreML.swiftinterface).
public struct MLOptimizationHints: Equatable, Sendable {
    public enum ReshapeFrequency: Int, Sendable {
        case frequent
        case infrequent
    }

    public var reshapeFrequency: ReshapeFrequency = .frequent

    public init() {}
}

/// The stand-in for Core ML's type (MLModelConfiguration.h).
public class MLModelConfiguration: NSObject {
    public var computeUnits: MLComputeUnits = .all
    public var functionName: String?
    public var optimizationHints = MLOptimizationHints()
}
