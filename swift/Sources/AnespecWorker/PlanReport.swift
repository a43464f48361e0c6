import CoreML
import Foundation

/// Core ML's compute plan of a compiled shard, in the schema of `ShardComputePlan` in `manifests/residency.py`.
///
/// A compute plan has no shapes; the host takes them from the package.
public struct PlanReport {
    /// The prefix of kinds without a device: constants, and operations that decompress them.
    private static let withoutDevice = "const"

    /// Return Core ML's plan as JSON.
    ///
    /// - Throws: a `load` WorkerError if Core ML refuses.
    public static func json(
        of shard: String, units: MLComputeUnits, function: String?, hint: ReshapeHint, name: String, sha256: String
    ) async throws(WorkerError) -> JSON {
        let plan: MLComputePlan
        do {
            plan = try await MLComputePlan.load(
                contentsOf: URL(fileURLWithPath: shard),
                configuration: StageLoader.configuration(units, function: function, hint: hint))
        } catch {
            throw WorkerError(.load, error, stage: shard)
        }
        guard case .program(let program) = plan.modelStructure else {
            throw WorkerError(.load, "the compiled model is not an ML program", stage: shard)
        }
        let functions = program.functions.sorted { $0.key < $1.key }.map { name, function in
            JSON.object(["name": .string(name), "operations": .array(operations(of: function.block, plan))])
        }
        return .object(["shard": .string(name), "sha256": .string(sha256), "functions": .array(functions), "refusal": .null])
    }

    private static func operations(of block: MLModelStructure.Program.Block, _ plan: MLComputePlan) -> [JSON] {
        let all = walk(block).filter { !kind($0).hasPrefix(withoutDevice) }
        let layers = layersByName(all.map(name))
        return zip(all, layers).map { operation, layer in
            let usage = plan.deviceUsage(for: operation)
            let cost = plan.estimatedCost(of: operation)?.weight
            return .object([
                "kind": .string(kind(operation)),
                "name": .string(name(operation)),
                "shapes": .array([]),
                "device": .string(usage.map { device($0.preferred) } ?? "none"),
                "supported": .array((usage?.supported ?? []).map { .string(device($0)) }),
                "cost": cost.map(JSON.number) ?? .null,
                "layer": layer.map(JSON.integer) ?? .null,
            ])
        }
    }

    private static func walk(_ block: MLModelStructure.Program.Block) -> [MLModelStructure.Program.Operation] {
        block.operations.flatMap { operation in [operation] + operation.blocks.flatMap(walk) }
    }

    /// Return the kind without the opset: `conv` for `ios18.conv`.
    private static func kind(_ operation: MLModelStructure.Program.Operation) -> String {
        operation.operatorName.split(separator: ".").last.map(String.init) ?? operation.operatorName
    }

    /// Return the name of the first output; an operation that writes a state has none and gets the state's name.
    private static func name(_ operation: MLModelStructure.Program.Operation) -> String {
        if let output = operation.outputs.first { return output.name }
        let names = operation.inputs["input"]?.bindings.compactMap { binding in
            if case .name(let name) = binding { name } else { nil }
        }
        return (names ?? []).joined(separator: " ")
    }

    private static func device(_ device: MLComputeDevice) -> String {
        switch device {
        case .cpu: "cpu"
        case .gpu: "gpu"
        case .neuralEngine: "ane"
        @unknown default: "none"
        }
    }
}

/// Return the layer of every operation: the one in its name, or else in the next name that has one; the last operations
/// belong to the last layer. The same as `layers_by_name` in `manifests/residency.py`.
func layersByName(_ names: [String]) -> [Int?] {
    let own = names.map(layer)
    var following = own.last { $0 != nil } ?? nil
    var layers: [Int?] = []
    for layer in own.reversed() {
        following = layer ?? following
        layers.append(following)
    }
    return layers.reversed()
}

/// Return the layer in a name: 3 for `layer_3_attended`.
private func layer(_ name: String) -> Int? {
    let digits = name.hasPrefix("layer_") ? name.dropFirst(6).prefix { "0"..."9" ~= $0 } : ""
    return !digits.isEmpty && name.dropFirst(6 + digits.count).first == "_" ? Int(digits) : nil
}
