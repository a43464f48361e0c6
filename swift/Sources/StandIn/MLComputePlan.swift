import Foundation

/// The stand-in for Core ML's type (CoreML.swiftinterface), read from the file `ANESPEC_STANDIN_PLAN`.
public class MLComputePlan {
    public struct DeviceUsage: Sendable {
        public let supported: [MLComputeDevice]
        public let preferred: MLComputeDevice
    }

    public struct Cost: Sendable {
        public let weight: Double
    }

    public final let modelStructure: MLModelStructure

    private init(modelStructure: MLModelStructure) {
        self.modelStructure = modelStructure
    }

    public static func load(contentsOf url: URL, configuration: MLModelConfiguration) async throws -> MLComputePlan {
        try Faults(path: url.path).raise(at: .plan)
        guard let file = ProcessInfo.processInfo.environment["ANESPEC_STANDIN_PLAN"] else {
            throw standInError(0, "this machine has no Core ML; set ANESPEC_STANDIN_PLAN to a file with a plan")
        }
        let plan = try JSONDecoder().decode(PlanFile.self, from: Data(contentsOf: URL(fileURLWithPath: file)))
        return MLComputePlan(modelStructure: plan.structure)
    }

    public func estimatedCost(of operation: MLModelStructure.Program.Operation) -> Cost? {
        operation.planned.cost.map(Cost.init(weight:))
    }

    public func deviceUsage(for operation: MLModelStructure.Program.Operation) -> DeviceUsage? {
        guard let preferred = operation.planned.device.flatMap(MLComputeDevice.init(name:)) else { return nil }
        return DeviceUsage(
            supported: (operation.planned.supported ?? []).compactMap(MLComputeDevice.init(name:)), preferred: preferred)
    }
}

/// The file from which the stand-in reads a plan (docs/worker.md, The stand-in).
struct PlanFile: Decodable, Sendable {
    struct Function: Decodable, Sendable {
        let name: String
        let operations: [Operation]
    }

    struct Operation: Decodable, Sendable {
        let `operator`: String
        let inputs: [String: [String]]?
        let outputs: [String]?
        let device: String?
        let supported: [String]?
        let cost: Double?
        let blocks: [[Operation]]?

        var structure: MLModelStructure.Program.Operation {
            MLModelStructure.Program.Operation(
                operatorName: `operator`,
                inputs: (inputs ?? [:]).mapValues { names in
                    MLModelStructure.Program.Argument(bindings: names.map { .name($0) })
                },
                outputs: (outputs ?? []).map { MLModelStructure.Program.NamedValueType(name: $0, type: .init()) },
                blocks: (blocks ?? []).map(PlanFile.block), planned: self)
        }
    }

    /// The functions; nil for a model that is not an ML program.
    let functions: [Function]?

    var structure: MLModelStructure {
        guard let functions else { return .unsupported }
        let made = functions.map {
            ($0.name, MLModelStructure.Program.Function(inputs: [], block: PlanFile.block($0.operations)))
        }
        return .program(MLModelStructure.Program(functions: Dictionary(made) { first, _ in first }))
    }

    private static func block(_ operations: [Operation]) -> MLModelStructure.Program.Block {
        MLModelStructure.Program.Block(inputs: [], outputNames: [], operations: operations.map(\.structure))
    }
}
