// Needs the stand-in for Core ML.
#if os(Linux)
import Foundation

@testable import AnespecWorker

/// A toy model: two layer shards, the second with a cache that the worker holds, and a head in two slices.
///
/// A layer adds 1 to x [1, 2, T, 1], and counts its passes in the slots of its state that it writes.
enum ToyChain {
    static let slots = 8
    static let vocabulary = 7

    static let models: [String: ToyModel] = [
        "/toy/a": ToyModel(inputs: ["x": [1, 2, nil, 1]], outputs: ["hidden"], states: ["k": [1, 2, slots, 3]]) { inputs, states in
            for index in states["k"]!.numbers.indices { states["k"]!.numbers[index] += UInt16(index) + 1 }
            return ["hidden": adding(1, inputs["x"]!)]
        },
        "/toy/b": ToyModel(inputs: ["x": [1, 2, nil, 1], "v": [1, 2, slots, 3]], outputs: ["hidden", "new_v"]) { inputs, _ in
            let rows = inputs["x"]!.sizes[2]
            // Row t of head h is 100 (h + 1) + 10 t + the cache's first number; in a pass of two rows, a negative zero.
            let new = ToyTensor([1, 2, rows, 3]) { index in
                rows == 2 ? 0x8000 :
                UInt16(100 * (index / (rows * 3) + 1) + 10 * (index / 3 % rows)) + inputs["v"]!.numbers[0]
            }
            return ["hidden": adding(1, inputs["x"]!), "new_v": new]
        },
        "/toy/head": ToyModel(inputs: ["x": [1, 2, nil, 1]], outputs: ["logits_0", "logits_1"]) { inputs, _ in
            let x = inputs["x"]!
            let rows = x.sizes[2]
            // The logit of token v in row t is the first channel of x, plus v.
            return [
                "logits_0": ToyTensor([1, 4, rows, 1]) { x.numbers[$0 % rows] + UInt16($0 / rows) },
                "logits_1": ToyTensor([1, 3, rows, 1]) { x.numbers[$0 % rows] + UInt16($0 / rows) + 4 },
            ]
        },
    ]

    private static func adding(_ number: UInt16, _ tensor: ToyTensor) -> ToyTensor {
        ToyTensor(tensor.sizes) { tensor.numbers[$0] + number }
    }

    static func arena() throws -> Arena {
        var entries: [(String, Int)] = [("logits", 2 * 2 * vocabulary), ("slots", 4096), ("cache.v", 2 * slots * 3 * 2)]
        for rows in [2, 4] {
            for name in ["hidden.0", "hidden.1", "hidden.2"] { entries.append(("\(name)@\(rows)", 4 * rows)) }
            entries += [("logits_0@\(rows)", 8 * rows), ("logits_1@\(rows)", 6 * rows)]
        }
        return try TestArena(entries).open()
    }

    private static let x = "{\"name\":\"x\",\"shape\":[1,2,null,1],\"buffer\":"
    private static let functions = "\"functions\":[{\"name\":\"two\",\"rows\":[2]},{\"name\":null,\"rows\":[4]}]"

    /// The stages as a host describes them.
    static let stages = [
        """
        {"path":"/toy/a","kind":"layers","first_token":0,\(functions),"inputs":[\(x)"hidden.0"}],
         "outputs":[{"name":"hidden","shape":[1,2,null,1],"buffer":"hidden.1"}],
         "states":[{"name":"k","shape":[1,2,8,3],"pool":0}],"caches":[]}
        """,
        """
        {"path":"/toy/b","kind":"layers","first_token":0,\(functions),"inputs":[\(x)"hidden.1"}],
         "outputs":[{"name":"hidden","shape":[1,2,null,1],"buffer":"hidden.2"}],"states":[],
         "caches":[{"name":"v","shape":[1,2,8,3],"pool":1,"new":"new_v","buffer":"cache.v"}]}
        """,
        """
        {"path":"/toy/head","kind":"head","first_token":0,\(functions),"inputs":[\(x)"hidden.2"}],
         "outputs":[{"name":"logits_0","shape":[1,4,null,1],"buffer":"logits_0"},
                    {"name":"logits_1","shape":[1,3,null,1],"buffer":"logits_1"}],"states":[],"caches":[]}
        """,
    ]

    static func load(_ stages: [String] = stages) -> String {
        """
        {"id":1,"op":"load","compute_units":"cpuAndNeuralEngine","vocabulary":\(vocabulary),"stages":[\(stages.joined(separator: ","))]}
        """
    }
}

extension Worker {
    /// Send a message; return the reply.
    func ask(_ message: String) throws -> JSON {
        try JSONParser.parse(answer(Array(message.utf8)).reply)
    }
}

extension JSON {
    subscript(key: String) -> JSON {
        guard case .object(let fields) = self else { return .null }
        return fields[key] ?? .null
    }

    subscript(index: Int) -> JSON {
        guard case .array(let values) = self, values.indices.contains(index) else { return .null }
        return values[index]
    }
}
#endif
