import CoreML
import Foundation

/// The hint to Core ML on how often shapes change; `none` gives no hint.
public enum ReshapeHint: String {
    case none, frequent, infrequent
}

/// Loads shards and binds them to an arena. Each entry gets only one tensor.
final class StageLoader {
    private struct Key: Hashable {
        let entry: String
        let sizes: [Int]
    }

    private let arena: Arena
    private let units: MLComputeUnits
    private let hint: ReshapeHint
    private var made: [Key: Stage.Output] = [:]

    init(arena: Arena, units: LoadRequest.Units, hint: ReshapeHint) {
        self.arena = arena
        self.hint = hint
        self.units =
            switch units {
            case .cpuOnly: .cpuOnly
            case .cpuAndNeuralEngine: .cpuAndNeuralEngine
            case .all: .all
            }
    }

    /// Load a shard with all its functions, which share one state of zeros.
    func load(_ spec: StageSpec) throws(WorkerError) -> Stage {
        var models: [(model: MLModel, function: FunctionSpec)] = []
        for function in spec.functions { models.append((try model(spec, function), function)) }
        guard let first = models.first?.model else { throw WorkerError(.request, "there is no function", stage: spec.path) }
        var caches: [String: StridedTensor] = [:]
        for cache in spec.caches {
            let tensor = try output(cache.cache!.buffer, cache.sizes, spec).tensor
            tensor.fillWithZeros()
            caches[cache.name] = tensor
        }
        let held = spec.states.isEmpty ? nil : first.makeState()
        var bindings: [Int: Stage.Binding] = [:]
        for (model, function) in models {
            for rows in function.rows { bindings[rows] = try bind(spec, model, rows, function.layout) }
        }
        let state = StageState(spec.states + spec.caches, held: held, caches: caches)
        return Stage(spec: spec, state: state, bindings: bindings)
    }

    /// Return the configuration to load a function or to get its plan. The backend `coreml` uses the same.
    static func configuration(_ units: MLComputeUnits, function: String?, hint: ReshapeHint) -> MLModelConfiguration {
        let configuration = MLModelConfiguration()
        configuration.computeUnits = units
        if let function { configuration.functionName = function }
        switch hint {
        case .none: break
        case .frequent: configuration.optimizationHints.reshapeFrequency = .frequent
        case .infrequent: configuration.optimizationHints.reshapeFrequency = .infrequent
        }
        return configuration
    }

    private func model(_ spec: StageSpec, _ function: FunctionSpec) throws(WorkerError) -> MLModel {
        let model: MLModel
        do {
            model = try MLModel(
                contentsOf: URL(fileURLWithPath: spec.path),
                configuration: StageLoader.configuration(units, function: function.name, hint: hint))
        } catch {
            throw WorkerError(.load, error, stage: spec.path)
        }
        try requireDeclared(spec, model.modelDescription)
        return model
    }

    /// Check the host's specification against the model: for an unknown state's name Core ML would end the process.
    private func requireDeclared(_ spec: StageSpec, _ model: MLModelDescription) throws(WorkerError) {
        func require(_ names: [String], among known: Dictionary<String, MLFeatureDescription>.Keys, _ what: String) throws(WorkerError) {
            if let name = names.first(where: { !known.contains($0) }) {
                throw WorkerError(.load, "the model has no \(what) \"\(name)\", only \(known.sorted())", stage: spec.path)
            }
        }
        let inputs = spec.inputs.map(\.name) + spec.caches.map(\.name)
        try require(inputs, among: model.inputDescriptionsByName.keys, "input")
        if let name = model.inputDescriptionsByName.keys.sorted().first(where: { !inputs.contains($0) }) {
            throw WorkerError(.load, "nothing is given for the model's input \"\(name)\"", stage: spec.path)
        }
        let outputs = spec.outputs.map(\.name) + spec.caches.compactMap(\.cache?.new)
        try require(outputs, among: model.outputDescriptionsByName.keys, "output")
        try require(spec.states.map(\.name), among: model.stateDescriptionsByName.keys, "state")
        for state in spec.states {
            let sizes = model.stateDescriptionsByName[state.name]?.stateConstraint?.bufferShape
            if let sizes, sizes != state.sizes {
                throw WorkerError(.load, "the model's state \"\(state.name)\" is \(sizes), not \(state.sizes)", stage: spec.path)
            }
        }
    }

    private func bind(_ spec: StageSpec, _ model: MLModel, _ rows: Int, _ layout: ChannelLayout) throws(WorkerError) -> Stage.Binding {
        var inputs: [String: MLFeatureValue] = [:]
        for input in spec.inputs {
            inputs[input.name] = MLFeatureValue(multiArray: try self.input(input, rows, spec, layout))
        }
        for cache in spec.caches {
            inputs[cache.name] = MLFeatureValue(multiArray: try output(cache.cache!.buffer, cache.sizes, spec).array)
        }
        var outputs: [String: Stage.Output] = [:]
        for made in spec.outputs { outputs[made.name] = try output(made.entry(rows), layout.sizes(made.shape, rows), spec) }
        for cache in spec.caches {
            if let new = cache.cache?.new { outputs[new] = try ownOutput(cache.newSizes(rows), spec) }
        }
        let options = MLPredictionOptions()
        options.outputBackings = outputs.mapValues { $0.array }
        do {
            let provider = try MLDictionaryFeatureProvider(dictionary: inputs)
            return Stage.Binding(model: model, layout: layout, inputs: provider, outputs: outputs, options: options)
        } catch {
            throw WorkerError(.load, error, stage: spec.path)
        }
    }

    /// Return an input's tensor at a width, over an entry of the arena.
    private func input(
        _ input: TensorSpec, _ rows: Int, _ spec: StageSpec, _ layout: ChannelLayout
    ) throws(WorkerError) -> MLMultiArray {
        let sizes = layout.sizes(input.shape, rows)
        guard input.element == .int32 else { return try output(input.entry(rows), sizes, spec).array }
        let memory = try arena.pointer(input.entry(rows), bytes: try tensorBytes(sizes, input.element, input.name))
        return try array(memory, sizes, .int32, spec, deallocator: nil)
    }

    /// Return an output's tensor over an entry of the arena.
    private func output(_ entry: String, _ sizes: [Int], _ spec: StageSpec) throws(WorkerError) -> Stage.Output {
        let key = Key(entry: entry, sizes: sizes)
        if let known = made[key] { return known }
        let memory = try arena.pointer(entry, bytes: try fp16Bytes(sizes, entry))
        let output = try tensor(memory, sizes, spec, deallocator: nil)
        made[key] = output
        return output
    }

    /// Return a tensor in memory of its own, page-aligned as Core ML's header requires.
    private func ownOutput(_ sizes: [Int], _ spec: StageSpec) throws(WorkerError) -> Stage.Output {
        let bytes = try fp16Bytes(sizes, "a cache's new rows")
        let memory = UnsafeMutableRawPointer.allocate(byteCount: bytes, alignment: Arena.alignment)
        return try tensor(memory, sizes, spec) { $0.deallocate() }
    }

    private func tensor(
        _ memory: UnsafeMutableRawPointer, _ sizes: [Int], _ spec: StageSpec,
        deallocator: (@Sendable (UnsafeMutableRawPointer) -> Void)?
    ) throws(WorkerError) -> Stage.Output {
        let array = try array(memory, sizes, .float16, spec, deallocator: deallocator)
        return Stage.Output(array: array, tensor: StridedTensor(memory, sizes))
    }

    private func array(
        _ memory: UnsafeMutableRawPointer, _ sizes: [Int], _ type: MLMultiArrayDataType, _ spec: StageSpec,
        deallocator: (@Sendable (UnsafeMutableRawPointer) -> Void)?
    ) throws(WorkerError) -> MLMultiArray {
        do {
            return try MLMultiArray(
                dataPointer: memory, shape: sizes.map { NSNumber(value: $0) }, dataType: type,
                strides: contiguousStrides(sizes).map { NSNumber(value: $0) }, deallocator: deallocator)
        } catch {
            throw WorkerError(.load, error, stage: spec.path)
        }
    }
}

/// Return the bytes of an fp16 tensor.
///
/// - Throws: a `request` WorkerError if the tensor is too large.
func fp16Bytes(_ sizes: [Int], _ what: String) throws(WorkerError) -> Int {
    try tensorBytes(sizes, .fp16, what)
}

/// Return the bytes of a tensor; throws like `fp16Bytes`.
func tensorBytes(_ sizes: [Int], _ element: TensorSpec.Element, _ what: String) throws(WorkerError) -> Int {
    guard let count = elementCount(sizes), count < 1 << 44 else {
        throw WorkerError(.request, "\"\(what)\" of \(sizes) is larger than any tensor")
    }
    return count * element.bytes
}
