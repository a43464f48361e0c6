// Find the largest logits of a row by their fp16 bits, in the order of `runtime/sampling/row_logits.py`.

/// A token and the bits of its logit.
struct Candidate: Equatable {
    let token: Int
    let bits: UInt16

    var isFinite: Bool { bits & 0x7C00 != 0x7C00 }

    /// An integer that orders as the numbers do; 0 and -0 are equal, and NaN is below all.
    var rank: Int32 { AnespecWorker.rank(bits) }

    var json: JSON { .array([.integer(token), .integer(Int(bits))]) }
}

/// Return an integer that orders as fp16 numbers do; see `Candidate.rank`.
@inline(__always)
func rank(_ bits: UInt16) -> Int32 {
    let magnitude = Int32(bits & 0x7FFF)
    if magnitude > 0x7C00 { return Int32.min }
    return bits & 0x8000 == 0 ? magnitude : -magnitude
}

/// A row's logits of one slice of the vocabulary.
struct LogitSlice {
    /// The slice's first token.
    let first: Int
    let bits: [UInt16]

    var tokens: Range<Int> { first..<first + bits.count }

    /// The largest logit, the lowest token on ties. If some are not finite, the one of them with the largest bits.
    var best: Candidate {
        // Without indices the compiler can vectorise the loop.
        var largest = Int32.min
        var strange: UInt16 = 0
        for value in bits {
            largest = max(largest, AnespecWorker.rank(value))
            strange |= value & 0x7C00 == 0x7C00 ? 1 : 0
        }
        guard strange == 0 else { return bestOfStrange }
        let found = bits.firstIndex { AnespecWorker.rank($0) == largest } ?? 0
        return Candidate(token: first + found, bits: bits[found])
    }

    private var bestOfStrange: Candidate {
        var found = Candidate(token: first, bits: 0)
        for (index, value) in bits.enumerated() where value & 0x7C00 == 0x7C00 && value > found.bits {
            found = Candidate(token: first + index, bits: value)
        }
        return found
    }

    /// Return the slice's candidates for the `count` largest, in order.
    func top(_ count: Int) -> [Candidate] {
        guard count > 0 else { return [] }
        if count > 64 { return Array(sorted(bits.indices.map { Candidate(token: first + $0, bits: bits[$0]) }).prefix(count)) }
        var found: [Candidate] = []
        var least = Int32.min
        for (index, value) in bits.enumerated() {
            let rank = AnespecWorker.rank(value)
            guard found.count < count || rank > least else { continue }
            let place = found.firstIndex { $0.rank < rank } ?? found.count
            found.insert(Candidate(token: first + index, bits: value), at: place)
            if found.count > count { found.removeLast() }
            least = found[found.count - 1].rank
        }
        return found
    }
}

/// Return the best of several slices: the first best that is not finite, else the largest, the first on ties.
func best(_ slices: [LogitSlice]) -> Candidate? {
    let found = slices.map(\.best)
    if let strange = found.first(where: { !$0.isFinite }) { return strange }
    return found.dropFirst().reduce(found.first) { known, next in
        known.map { next.rank > $0.rank ? next : $0 }
    }
}

/// Return the `count` largest of several slices: largest first, the lower token first on ties, NaN last.
func top(_ slices: [LogitSlice], _ count: Int) -> [Candidate] {
    Array(sorted(slices.flatMap { $0.top(count) }).prefix(count))
}

private func sorted(_ candidates: [Candidate]) -> [Candidate] {
    candidates.sorted { ($1.rank, $0.token) < ($0.rank, $1.token) }
}
