/// The fields of a JSON object. Each is read once, and `finish` refuses unknown ones.
struct Fields {
    private var left: [String: JSON]
    private let what: String

    /// - Parameter what: the name of the object in errors, such as "stage 2".
    init(_ value: JSON, _ what: String) throws(WorkerError) {
        guard case .object(let fields) = value else { throw WorkerError(.request, "\(what) is no object") }
        left = fields
        self.what = what
    }

    /// Read a field; nil if it is missing or null.
    mutating func optional(_ name: String) -> JSON? {
        let value = left.removeValue(forKey: name)
        return value == .null ? nil : value
    }

    mutating func required(_ name: String) throws(WorkerError) -> JSON {
        guard let value = optional(name) else { throw WorkerError(.request, "\(what) lacks \"\(name)\"") }
        return value
    }

    mutating func string(_ name: String) throws(WorkerError) -> String {
        guard case .string(let text) = try required(name) else { throw wrong(name, "text") }
        return text
    }

    mutating func optionalString(_ name: String) throws(WorkerError) -> String? {
        switch optional(name) {
        case nil: return nil
        case .string(let text): return text
        default: throw wrong(name, "text")
        }
    }

    mutating func bool(_ name: String) throws(WorkerError) -> Bool {
        guard case .bool(let value) = try required(name) else { throw wrong(name, "true or false") }
        return value
    }

    mutating func optionalBool(_ name: String) throws(WorkerError) -> Bool? {
        switch optional(name) {
        case nil: return nil
        case .bool(let value): return value
        default: throw wrong(name, "true or false")
        }
    }

    /// Read an integer within `range`.
    mutating func integer(_ name: String, _ range: ClosedRange<Int>) throws(WorkerError) -> Int {
        guard case .integer(let value) = try required(name), range.contains(value) else {
            throw wrong(name, "a whole number of \(range.lowerBound) to \(range.upperBound)")
        }
        return value
    }

    mutating func array(_ name: String) throws(WorkerError) -> [JSON] {
        guard case .array(let values) = try required(name) else { throw wrong(name, "a list") }
        return values
    }

    /// Read a list of integers within `range`.
    mutating func integers(_ name: String, _ range: ClosedRange<Int>) throws(WorkerError) -> [Int] {
        try integerList(try required(name), range, "\(what)'s \"\(name)\"")
    }

    /// Refuse fields that were not read.
    func finish() throws(WorkerError) {
        if let name = left.keys.sorted().first { throw WorkerError(.request, "\(what) has an unknown \"\(name)\"") }
    }

    private func wrong(_ name: String, _ expected: String) -> WorkerError {
        WorkerError(.request, "\(what)'s \"\(name)\" is not \(expected)")
    }
}

/// Parse a list of integers within `range`.
func integerList(_ value: JSON, _ range: ClosedRange<Int>, _ what: String) throws(WorkerError) -> [Int] {
    guard case .array(let values) = value else { throw WorkerError(.request, "\(what) is not a list") }
    var integers: [Int] = []
    integers.reserveCapacity(values.count)
    for value in values {
        guard case .integer(let integer) = value, range.contains(integer) else {
            throw WorkerError(
                .request, "\(what) has what is no whole number of \(range.lowerBound) to \(range.upperBound)")
        }
        integers.append(integer)
    }
    return integers
}
