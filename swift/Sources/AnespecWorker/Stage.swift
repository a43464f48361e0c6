import CoreML
import Foundation

/// One loaded shard: a model per function, bound to the arena at every width that is run.
final class Stage {
    /// A width: the model that runs it and the tensors that it runs on, made once.
    struct Binding {
        let model: MLModel
        let layout: ChannelLayout
        let inputs: MLDictionaryFeatureProvider
        let outputs: [String: Output]
        let options: MLPredictionOptions
    }

    /// Where an output is asked for, and must be.
    struct Output {
        let array: MLMultiArray
        let tensor: StridedTensor
    }

    let spec: StageSpec
    let state: StageState
    private let bindings: [Int: Binding]

    /// Milliseconds spent in predictions.
    private(set) var milliseconds = 0.0
    /// Bytes of outputs that Core ML did not put where it was asked to.
    private(set) var copied = 0

    init(spec: StageSpec, state: StageState, bindings: [Int: Binding]) {
        self.spec = spec
        self.state = state
        self.bindings = bindings
    }

    func runs(_ rows: Int) -> Bool {
        bindings[rows] != nil
    }

    /// One prediction, from the input entries to the output entries; its milliseconds.
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

    /// Run every width once, on what lies in the arena, and forget what that wrote: Core ML may make a model anew at the first
    /// pass of each, which takes minutes. The milliseconds by rows.
    func runFirstPasses() throws(WorkerError) -> [(rows: Int, milliseconds: Double)] {
        var spent: [(rows: Int, milliseconds: Double)] = []
        for rows in spec.functions.flatMap(\.rows) { spent.append((rows, try run(rows))) }
        try state.each { $0.fillWithZeros() }
        milliseconds = 0
        copied = 0
        return spent
    }

    /// Where it fails with backings, it is tried without: Core ML refuses those that it does not take for some outputs of
    /// flexible shapes (executorch#9094 and its runtime, B). What the first try wrote to the state, the second writes again.
    private func predict(_ binding: Binding) throws -> any MLFeatureProvider {
        func made(_ options: MLPredictionOptions) throws -> any MLFeatureProvider {
            guard let held = state.coreML else { return try binding.model.prediction(from: binding.inputs, options: options) }
            return try binding.model.prediction(from: binding.inputs, using: held, options: options)
        }
        do {
            return try made(binding.options)
        } catch {
            // What no second try mends is said as it was said first.
            guard !binding.options.outputBackings.isEmpty, let other = try? made(MLPredictionOptions()) else { throw error }
            binding.options.outputBackings = [:]
            return other
        }
    }

    /// Write the new rows of the last run at this width to the caches' homes.
    func writeCaches(_ rows: Int, homes: [[Int]]) throws(WorkerError) {
        let binding = try self.binding(rows)
        for cache in spec.caches {
            guard let new = cache.cache.flatMap({ binding.outputs[$0.new] }) else { continue }
            state.write(new.tensor, to: cache, homes: homes[cache.pool])
        }
    }

    /// Refuse outputs of the last run at this width that are no numbers: a layer's go into states, and stay there.
    func requireNumbers(_ rows: Int) throws(WorkerError) {
        for (name, output) in try binding(rows).outputs where !output.tensor.isFinite {
            throw WorkerError(.predict, "not a number: \(name)", stage: spec.path)
        }
    }

    /// Slices of the vocabulary that a head made.
    func logits(_ rows: Int) throws(WorkerError) -> [ChannelTensor] {
        let binding = try self.binding(rows)
        return spec.outputs.compactMap { output in
            binding.outputs[output.name].map { ChannelTensor(tensor: $0.tensor, layout: binding.layout) }
        }
    }

    /// Refuse homes that the caches have not.
    func check(homes: [[Int]]) throws(WorkerError) {
        for cache in spec.caches {
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
        // Only read, so that the array keeps its memory and these strides.
        let strides = array.strides.map(\.intValue)
        array.withUnsafeBytes { memory in
            guard let base = memory.baseAddress else { return }
            output.tensor.copy(from: StridedTensor(UnsafeMutableRawPointer(mutating: base), sizes, strides: strides))
        }
        copied += sizes.reduce(2, *)
    }
}
