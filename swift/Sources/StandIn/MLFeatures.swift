import Foundation

/// Core ML's (MLFeatureValue.h), of which only tensors are here.
public class MLFeatureValue: NSObject {
    public let multiArrayValue: MLMultiArray?

    public init(multiArray value: MLMultiArray) {
        multiArrayValue = value
    }
}

/// Core ML's (MLFeatureProvider.h).
public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }
    func featureValue(for featureName: String) -> MLFeatureValue?
}

/// Core ML's (MLDictionaryFeatureProvider.h).
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

/// Core ML's (MLPredictionOptions.h).
public class MLPredictionOptions: NSObject {
    /// Where outputs shall lie. Core ML may decline; the stand-in does where a backing's shape is not the output's.
    public var outputBackings: [String: Any] = [:]
}
