import Foundation

/// The stand-in for Core ML's type (MLState.h): the buffers of a model's states.
public final class MLState: NSObject, @unchecked Sendable {
    let buffers: [String: MLMultiArray]

    init(buffers: [String: MLMultiArray]) {
        self.buffers = buffers
    }

    /// Call `body` with a state. An unknown name ends the process, as Core ML's exception does.
    public func withMultiArray<R>(for stateName: String, _ body: (MLMultiArray) throws -> R) rethrows -> R {
        guard let array = buffers[stateName] else { fatalError("there is no state \(stateName)") }
        return try body(array)
    }
}
