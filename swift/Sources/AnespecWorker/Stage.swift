import CoreML
import Foundation

/// A loaded shard: a model for each function, bound to the arena at every width in use.
final class Stage {
    /// The model for a width and its tensors, made once.
    struct Binding {
        let model: MLModel
        let layout: ChannelLayout
        let inputs: MLDictionaryFeatureProvider
        let outputs: [String: Output]
        let options: MLPredictionOptions
    }

    /// The memory to which an output must be written.
    struct Output {
        let array: MLMultiArray
        let tensor: StridedTensor
    }

    let spec: StageSpec
    let state: StageState
    private let bindings: [Int: Binding]

    /// The milliseconds of all predictions.
    private(set) var milliseconds = 0.0
    /// The bytes of outputs that Core ML did not write to the given backings.
    private(set) var copied = 0

    init(spec: StageSpec, state: StageState, bindings: [Int: Binding]) {
        self.spec = spec
        self.state = state
        self.bindings = bindings
    }

    func runs(_ rows: Int) -> Bool {
        bindings[rows] != nil
    }

    /// Run a prediction from the input entries to the output entries; return its milliseconds.
    func run(_ rows: Int) throws(WorkerError) -> Double {
        let binding = try self.binding(rows)
        let start = AnespecWorker.milliseconds()
        let made: any MLFeatureProvider
        do {
            made = try predict(binding)
        } catch {
            throw WorkerError(.predict, error, stage: spec.path)
        }
        for (name, output) in binding.outputs { try keep(made.featureValue(for: name)?.multiArrayValue, name, output) }
        let spent = AnespecWorker.milliseconds() - start
        milliseconds += spent
        return spent
    }

    /// Run every width once with the arena's inputs and reset the states; return the milliseconds by rows.
    ///
    /// Core ML may prepare a model anew at the first pass of each width, which takes minutes.
    func runFirstPasses() throws(WorkerError) -> [(rows: Int, milliseconds: Double)] {
        var spent: [(rows: Int, milliseconds: Double)] = []
        for rows in spec.functions.flatMap(\.rows) { spent.append((rows, try run(rows))) }
        try state.each { $0.fillWithZeros() }
        milliseconds = 0
        copied = 0
        return spent
    }

    /// Run a prediction; if it fails with backings, try it again without.
    ///
    /// Core ML refuses backings for some outputs with flexible shapes (executorch#9094 and its runtime, B). The second try
    /// writes to the state again what the first one wrote.
    private func predict(_ binding: Binding) throws -> any MLFeatureProvider {
        func made(_ options: MLPredictionOptions) throws -> any MLFeatureProvider {
            guard let held = state.coreML else { return try binding.model.prediction(from: binding.inputs, options: options) }
            return try binding.model.prediction(from: binding.inputs, using: held, options: options)
        }
        do {
            return try made(binding.options)
        } catch {
            // If the second try fails too, the first error is reported.
            guard !binding.options.outputBackings.isEmpty, let other = try? made(MLPredictionOptions()) else { throw error }
            binding.options.outputBackings = [:]
            return other
        }
    }

    /// Write the new rows of the last run at this width to their slots in the caches.
    func writeCaches(_ rows: Int, homes: [[Int]]) throws(WorkerError) {
        let binding = try self.binding(rows)
        for cache in spec.caches {
            guard let name = cache.cache?.new, let new = binding.outputs[name] else { continue }
            state.write(new.tensor, to: cache, homes: homes[cache.pool])
        }
    }

    /// Refuse outputs of the last run at this width that are not finite: those of layers would stay in the states.
    func requireNumbers(_ rows: Int) throws(WorkerError) {
        for (name, output) in try binding(rows).outputs where !output.tensor.isFinite {
            throw WorkerError(.predict, "not a number: \(name)", stage: spec.path)
        }
    }

    /// Return the logits of a head's slices after a run at this width.
    func logits(_ rows: Int) throws(WorkerError) -> [ChannelTensor] {
        let binding = try self.binding(rows)
        return spec.outputs.compactMap { output in
            binding.outputs[output.name].map { ChannelTensor(tensor: $0.tensor, layout: binding.layout) }
        }
    }

    /// Refuse slots that the caches do not have.
    func check(homes: [[Int]]) throws(WorkerError) {
        for cache in spec.caches where cache.cache?.new != nil {
            guard homes.indices.contains(cache.pool) else {
                throw WorkerError(.request, "\"homes\" has no pool \(cache.pool), which \"\(cache.name)\" is of", stage: spec.path)
            }
            for slot in homes[cache.pool] where slot >= cache.slots {
                throw WorkerError(.request, "slot \(slot) leaves \"\(cache.name)\" of \(cache.slots)", stage: spec.path)
            }
        }
    }

    private func binding(_ rows: Int) throws(WorkerError) -> Binding {
        guard let binding = bindings[rows] else {
            throw WorkerError(.request, "no function was loaded for \(rows) rows", stage: spec.path)
        }
        return binding
    }

    private func keep(_ array: MLMultiArray?, _ name: String, _ output: Output) throws(WorkerError) {
        guard let array else { throw WorkerError(.predict, "the prediction has no \"\(name)\"", stage: spec.path) }
        guard array !== output.array else { return }
        let sizes = array.shape.map(\.intValue)
        guard array.dataType == .float16, sizes == output.tensor.sizes else {
            throw WorkerError(
                .predict, "the prediction's \"\(name)\" is \(sizes) of type \(array.dataType.rawValue), not fp16 \(output.tensor.sizes)",
                stage: spec.path)
        }
        // The array is only read here, so it keeps its memory and these strides.
        let strides = array.strides.map(\.intValue)
        array.withUnsafeBytes { memory in
            guard let base = memory.baseAddress else { return }
            output.tensor.copy(from: StridedTensor(UnsafeMutableRawPointer(mutating: base), sizes, strides: strides))
        }
        copied += sizes.reduce(2, *)
    }
}
