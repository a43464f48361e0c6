import Foundation

/// The stand-in for Core ML's type (MLFeatureValue.h), of which only tensors are here.
public class MLFeatureValue: NSObject {
    public let multiArrayValue: MLMultiArray?

    public init(multiArray value: MLMultiArray) {
        multiArrayValue = value
    }
}

/// The stand-in for Core ML's type (MLFeatureProvider.h).
public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }
    func featureValue(for featureName: String) -> MLFeatureValue?
}

/// The stand-in for Core ML's type (MLDictionaryFeatureProvider.h).
public class MLDictionaryFeatureProvider: NSObject, MLFeatureProvider {
    public let dictionary: [String: MLFeatureValue]

    public init(dictionary: [String: Any]) throws {
        self.dictionary = try dictionary.mapValues { value in
            switch value {
            case let value as MLFeatureValue: return value
            case let value as MLMultiArray: return MLFeatureValue(multiArray: value)
            default: throw standInError(0, "no feature value")
            }
        }
    }

    public var featureNames: Set<String> { Set(dictionary.keys) }

    public func featureValue(for featureName: String) -> MLFeatureValue? {
        dictionary[featureName]
    }

    public subscript(featureName: String) -> MLFeatureValue? { dictionary[featureName] }
}

/// The stand-in for Core ML's type (MLPredictionOptions.h).
public class MLPredictionOptions: NSObject {
    /// The memory for outputs, by name. Core ML may ignore it; the stand-in does if a backing's shape is not the output's.
    public var outputBackings: [String: Any] = [:]
}
