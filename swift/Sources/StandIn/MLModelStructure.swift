import Foundation

/// The stand-in for Core ML's type (CoreML.swiftinterface), of which only programs are here.
public enum MLModelStructure: Sendable {
    public struct Program: Sendable {
        public struct ValueType: Sendable {}

        public struct Value: Sendable {}

        public struct NamedValueType: Sendable {
            public let name: String
            public let type: ValueType
        }

        public enum Binding: Sendable {
            case value(Value)
            case name(String)
        }

        public struct Argument: Sendable {
            public let bindings: [Binding]
        }

        public struct Function: Sendable {
            public let inputs: [NamedValueType]
            public let block: Block
        }

        public struct Block: Sendable {
            public let inputs: [NamedValueType]
            public let outputNames: [String]
            public let operations: [Operation]
        }

        public struct Operation: Sendable {
            public let operatorName: String
            public let inputs: [String: Argument]
            public let outputs: [NamedValueType]
            public let blocks: [Block]
            /// The operation in the plan's file; Core ML's class has no such property.
            let planned: PlanFile.Operation
        }

        public let functions: [String: Function]
    }

    public struct NeuralNetwork: Sendable {}

    public struct Pipeline: Sendable {}

    case neuralNetwork(NeuralNetwork)
    case program(Program)
    case pipeline(Pipeline)
    case unsupported
}
