import CoreML
import Foundation

/// The states of a stage, in its graph's MLState or in the arena. Their slots can be read, written and copied.
final class StageState {
    let specs: [StateSpec]
    private let held: MLState?
    private let caches: [String: StridedTensor]

    /// - Parameters:
    ///   - specs: the graph's states first, then the caches.
    ///   - held: the graph's states.
    ///   - caches: the arena's states by name.
    init(_ specs: [StateSpec], held: MLState?, caches: [String: StridedTensor]) {
        self.specs = specs
        self.held = held
        self.caches = caches
    }

    var coreML: MLState? { held }

    /// Call `body` with each state [n, n_kv, S, head_dim] of a pool, of all pools if nil; it may write to the memory.
    func each(pool: Int? = nil, _ body: (StridedTensor) throws(WorkerError) -> Void) throws(WorkerError) {
        for spec in specs where pool == nil || spec.pool == pool {
            if let cache = caches[spec.name] {
                try body(cache)
            } else if let held {
                try StageState.withTensor(held, spec, body)
            }
        }
    }

    /// Write row t of [n, n_kv, T, head_dim] to slot `homes[t]` of a cache, unless that is -1.
    ///
    /// A negative zero becomes zero, as in the sum to which the pass itself attends.
    func write(_ new: StridedTensor, to cache: StateSpec, homes: [Int]) {
        guard let tensor = caches[cache.name] else { return }
        for (lane, slot) in homes.enumerated() where slot >= 0 {
            let written = tensor.slots(slot, 1)
            written.copy(from: new.slots(lane, 1))
            written.replace(0x8000, with: 0)
        }
    }

    private static func withTensor(
        _ state: MLState, _ spec: StateSpec, _ body: (StridedTensor) throws(WorkerError) -> Void
    ) throws(WorkerError) {
        let result: Result<Void, WorkerError> = state.withMultiArray(for: spec.name) { array in
            guard array.dataType == .float16, array.shape.map(\.intValue) == spec.sizes else {
                return .failure(WorkerError(.internal, "the state \"\(spec.name)\" has another shape or type than it was loaded with"))
            }
            return array.withUnsafeMutableBytes { memory, strides in
                guard let base = memory.baseAddress else {
                    return .failure(WorkerError(.internal, "the state \"\(spec.name)\" has no memory"))
                }
                do {
                    try body(StridedTensor(base, spec.sizes, strides: strides))
                    return .success(())
                } catch let error as WorkerError {
                    return .failure(error)
                } catch {
                    return .failure(WorkerError(.internal, "\(error)"))
                }
            }
        }
        try result.get()
    }
}
