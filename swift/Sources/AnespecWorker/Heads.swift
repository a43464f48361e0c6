/// The head shards of a worker: gathers their input rows, runs them, and reduces their logits to the requested ones.
struct Heads {
    let stages: [Stage]
    let vocabulary: Int
    let arena: Arena

    /// Refuse a pass whose requested logits cannot be returned, before anything runs.
    func check(_ pass: PassRequest) throws(WorkerError) {
        guard let head = pass.head, !stages.isEmpty else { return }
        for stage in stages where !stage.runs(head.rows) {
            throw WorkerError(.request, "no function was loaded for \(head.rows) rows", stage: stage.spec.path)
        }
        for row in pass.wanted {
            for token in row.chosen where token >= vocabulary {
                throw WorkerError(.request, "token \(token) is beyond the vocabulary of \(vocabulary)")
            }
            if let place = row.logits { _ = try logitsRow(place) }
        }
        _ = try gathers(pass, head)
    }

    /// Copy the requested lanes to the heads' inputs, run all heads, and return their times and the rows of the reply.
    func run(_ pass: PassRequest) throws(WorkerError) -> (milliseconds: [Double], rows: [JSON]) {
        var milliseconds = stages.map { _ in 0.0 }
        guard let head = pass.head, !stages.isEmpty else { return (milliseconds, []) }
        let moves = try gathers(pass, head)
        var answers: [JSON?] = pass.wanted.map { _ in nil }
        for lanes in head.runs {
            for (source, target, outer, inner) in moves {
                gather(source, target, lanes: lanes, of: pass.rows, outer: outer, inner: inner)
            }
            for (index, stage) in stages.enumerated() { milliseconds[index] += try stage.run(head.rows) }
            for (index, wanted) in pass.wanted.enumerated() where answers[index] == nil {
                if let row = lanes.firstIndex(of: wanted.lane) { answers[index] = try answer(wanted, row, of: head.rows) }
            }
        }
        return (milliseconds, answers.compactMap { $0 })
    }

    private typealias Memory = UnsafeMutablePointer<UInt16>

    /// Return the copies to make: inputs [outer, T, inner] at the pass's width to the head's, once for each entry.
    private func gathers(_ pass: PassRequest, _ head: PassRequest.Head) throws(WorkerError) -> [(Memory, Memory, Int, Int)] {
        guard head.rows != pass.rows else { return [] }
        var moves: [String: (Memory, Memory, Int, Int)] = [:]
        for input in stages.flatMap(\.spec.inputs) where moves[input.buffer] == nil {
            let sizes = input.shape.sizes
            let axis = sizes.firstIndex(of: nil) ?? 0
            let outer = sizes[..<axis].reduce(1) { $0 * ($1 ?? 1) }
            let inner = sizes[(axis + 1)...].reduce(1) { $0 * ($1 ?? 1) }
            var ends: [Memory] = []
            for rows in [pass.rows, head.rows] {
                let memory = try arena.pointer(input.entry(rows), bytes: try fp16Bytes(input.shape.at(rows), input.name))
                ends.append(memory.assumingMemoryBound(to: UInt16.self))
            }
            moves[input.buffer] = (ends[0], ends[1], outer, inner)
        }
        return Array(moves.values)
    }

    private func gather(_ source: Memory, _ target: Memory, lanes: [Int], of rows: Int, outer: Int, inner: Int) {
        for index in 0..<outer {
            for (row, lane) in lanes.enumerated() {
                (target + (index * lanes.count + row) * inner).update(from: source + (index * rows + lane) * inner, count: inner)
            }
        }
    }

    /// Return the requested logits of a lane, which was row `row` of the heads' last run.
    private func answer(_ wanted: PassRequest.Wanted, _ row: Int, of rows: Int) throws(WorkerError) -> JSON {
        let slices = try self.slices(row, rows: rows)
        if let place = wanted.logits {
            let target = try logitsRow(place)
            for slice in slices {
                for (index, bits) in slice.bits.enumerated() { target[slice.first + index] = bits }
            }
        }
        let chosen = wanted.chosen.map { token in
            slices.first { $0.tokens.contains(token) }.map { JSON.integer(Int($0.bits[token - $0.first])) } ?? .null
        }
        return .object([
            "lane": .integer(wanted.lane),
            "best": wanted.best ? best(slices)?.json ?? .null : .null,
            "top": .array(top(slices, wanted.top).map(\.json)),
            "chosen": .array(chosen),
        ])
    }

    private func slices(_ row: Int, rows: Int) throws(WorkerError) -> [LogitSlice] {
        var slices: [LogitSlice] = []
        for stage in stages {
            var first = stage.spec.firstToken
            for tensor in try stage.logits(rows) {
                let bits = tensor.row(row)
                slices.append(LogitSlice(first: first, bits: bits))
                first += bits.count
            }
        }
        return slices
    }

    private func logitsRow(_ row: Int) throws(WorkerError) -> Memory {
        let bytes = try fp16Bytes([row + 1, vocabulary], "logits")
        let memory = try arena.pointer("logits", bytes: bytes).assumingMemoryBound(to: UInt16.self)
        return memory + row * vocabulary
    }
}
