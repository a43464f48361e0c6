import Foundation

/// Core ML's (MLState.h): the buffers of a model's states.
public final class MLState: NSObject, @unchecked Sendable {
    let buffers: [String: MLMultiArray]

    init(buffers: [String: MLMultiArray]) {
        self.buffers = buffers
    }

    /// A name that the model has not ends the process, as Core ML's exception does.
    public func withMultiArray<R>(for stateName: String, _ body: (MLMultiArray) throws -> R) rethrows -> R {
        guard let array = buffers[stateName] else { fatalError("there is no state \(stateName)") }
        return try body(array)
    }
}
