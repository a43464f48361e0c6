import Foundation

/// The stand-in for Core ML's type (MLMultiArrayConstraint.h).
public class MLMultiArrayConstraint: NSObject {
    public let shape: [NSNumber]
    public let dataType: MLMultiArrayDataType

    init(shape: [NSNumber], dataType: MLMultiArrayDataType) {
        self.shape = shape
        self.dataType = dataType
    }
}

/// The stand-in for Core ML's type (MLStateConstraint.h, CoreML.swiftinterface).
public class MLStateConstraint: NSObject {
    public let bufferShape: [Int]
    public let dataType: MLMultiArrayDataType

    init(bufferShape: [Int], dataType: MLMultiArrayDataType) {
        self.bufferShape = bufferShape
        self.dataType = dataType
    }
}

/// The stand-in for Core ML's type (MLFeatureDescription.h).
public class MLFeatureDescription: NSObject {
    public let name: String
    public let multiArrayConstraint: MLMultiArrayConstraint?
    public let stateConstraint: MLStateConstraint?

    init(name: String, multiArray: MLMultiArrayConstraint? = nil, state: MLStateConstraint? = nil) {
        self.name = name
        multiArrayConstraint = multiArray
        stateConstraint = state
    }
}

/// The stand-in for Core ML's type (MLModelDescription.h).
public class MLModelDescription: NSObject {
    public let inputDescriptionsByName: [String: MLFeatureDescription]
    public let outputDescriptionsByName: [String: MLFeatureDescription]
    public let stateDescriptionsByName: [String: MLFeatureDescription]

    /// - Parameters:
    ///   - inputs: sizes by name; a size that varies is 1.
    ///   - outputs: names; their sizes are unknown before a prediction.
    ///   - states: sizes by name.
    init(inputs: [String: [Int]], outputs: [String], states: [String: [Int]]) {
        func tensor(_ name: String, _ sizes: [Int]) -> MLFeatureDescription {
            let constraint = MLMultiArrayConstraint(shape: sizes.map(NSNumber.init(value:)), dataType: .float16)
            return MLFeatureDescription(name: name, multiArray: constraint)
        }
        inputDescriptionsByName = Dictionary(uniqueKeysWithValues: inputs.map { ($0, tensor($0, $1)) })
        outputDescriptionsByName = Dictionary(outputs.map { ($0, tensor($0, [])) }) { first, _ in first }
        stateDescriptionsByName = Dictionary(
            uniqueKeysWithValues: states.map { name, sizes in
                let constraint = MLStateConstraint(bufferShape: sizes, dataType: .float16)
                return (name, MLFeatureDescription(name: name, state: constraint))
            })
    }
}
