/// The error for text that is not JSON, with its position.
public struct JSONError: Error, Equatable {
    public let text: String
}

/// A strict parser of JSON: keys are unique, nothing follows the value, and the depth is limited.
struct JSONParser {
    /// The largest depth, more than any message has; the parser recurses for each level.
    static let deepest = 32

    private let bytes: [UInt8]
    private var at = 0

    /// Parse `bytes` as one value.
    static func parse(_ bytes: [UInt8]) throws(JSONError) -> JSON {
        var parser = JSONParser(bytes: bytes)
        let value = try parser.value(depth: 0)
        parser.skipSpace()
        guard parser.at == bytes.count else { throw parser.unexpected() }
        return value
    }

    private init(bytes: [UInt8]) {
        self.bytes = bytes
    }

    private func unexpected() -> JSONError {
        JSONError(text: at < bytes.count ? "unexpected byte \(bytes[at]) at \(at)" : "it ends too early")
    }

    private var next: UInt8? { at < bytes.count ? bytes[at] : nil }

    private mutating func skipSpace() {
        while let byte = next, byte == 32 || byte == 9 || byte == 10 || byte == 13 { at += 1 }
    }

    private mutating func take(_ character: Unicode.Scalar) throws(JSONError) {
        guard next == UInt8(ascii: character) else { throw unexpected() }
        at += 1
    }

    private mutating func value(depth: Int) throws(JSONError) -> JSON {
        guard depth < JSONParser.deepest else { throw JSONError(text: "it is nested too deeply") }
        skipSpace()
        switch next {
        case UInt8(ascii: "{"): return try object(depth: depth)
        case UInt8(ascii: "["): return try array(depth: depth)
        case UInt8(ascii: "\""): return .string(try string())
        case UInt8(ascii: "t"): return try word("true", .bool(true))
        case UInt8(ascii: "f"): return try word("false", .bool(false))
        case UInt8(ascii: "n"): return try word("null", .null)
        default: return try number()
        }
    }

    private mutating func word(_ text: String, _ value: JSON) throws(JSONError) -> JSON {
        for scalar in text.unicodeScalars { try take(scalar) }
        return value
    }

    private mutating func object(depth: Int) throws(JSONError) -> JSON {
        try take("{")
        var fields: [String: JSON] = [:]
        skipSpace()
        if next == UInt8(ascii: "}") {
            at += 1
            return .object(fields)
        }
        while true {
            skipSpace()
            let key = try string()
            skipSpace()
            try take(":")
            guard fields.updateValue(try value(depth: depth + 1), forKey: key) == nil else {
                throw JSONError(text: "the key \"\(key)\" stands twice")
            }
            skipSpace()
            guard next == UInt8(ascii: ",") else { break }
            at += 1
        }
        try take("}")
        return .object(fields)
    }

    private mutating func array(depth: Int) throws(JSONError) -> JSON {
        try take("[")
        var values: [JSON] = []
        skipSpace()
        if next == UInt8(ascii: "]") {
            at += 1
            return .array(values)
        }
        while true {
            values.append(try value(depth: depth + 1))
            skipSpace()
            guard next == UInt8(ascii: ",") else { break }
            at += 1
        }
        try take("]")
        return .array(values)
    }

    private mutating func number() throws(JSONError) -> JSON {
        let first = at
        while let byte = next, "+-.eE0123456789".utf8.contains(byte) { at += 1 }
        guard let digits = bytes[first..<at].first(where: { $0 != UInt8(ascii: "-") }), digits >= 48, digits < 58
        else { throw unexpected() }
        let text = String(decoding: bytes[first..<at], as: UTF8.self)
        if let whole = Int(text) { return .integer(whole) }
        guard let number = Double(text), number.isFinite else { throw JSONError(text: "\(text) is no number") }
        return .number(number)
    }

    private mutating func string() throws(JSONError) -> String {
        try take("\"")
        var units: [UInt8] = []
        while let byte = next, byte != UInt8(ascii: "\"") {
            guard byte >= 32 else { throw unexpected() }
            at += 1
            if byte == UInt8(ascii: "\\") {
                units += try escaped()
            } else {
                units.append(byte)
            }
        }
        try take("\"")
        guard let text = String(validating: units, as: UTF8.self) else {
            throw JSONError(text: "a string is not UTF-8")
        }
        return text
    }

    private mutating func escaped() throws(JSONError) -> [UInt8] {
        let plain: [UInt8: UInt8] = [34: 34, 92: 92, 47: 47, 98: 8, 102: 12, 110: 10, 114: 13, 116: 9]
        guard let byte = next else { throw unexpected() }
        at += 1
        if let meant = plain[byte] { return [meant] }
        guard byte == UInt8(ascii: "u") else { throw unexpected() }
        var scalar = try hexadecimal()
        if scalar >= 0xD800, scalar < 0xDC00 {
            try take("\\")
            try take("u")
            let low = try hexadecimal()
            guard low >= 0xDC00, low < 0xE000 else { throw JSONError(text: "half a surrogate pair") }
            scalar = 0x10000 + ((scalar - 0xD800) << 10) + (low - 0xDC00)
        }
        guard let meant = Unicode.Scalar(scalar) else { throw JSONError(text: "half a surrogate pair") }
        return Array(String(Character(meant)).utf8)
    }

    private mutating func hexadecimal() throws(JSONError) -> UInt32 {
        guard at + 4 <= bytes.count, bytes[at..<at + 4].allSatisfy({ Character(Unicode.Scalar($0)).isHexDigit }),
            let value = UInt32(String(decoding: bytes[at..<at + 4], as: UTF8.self), radix: 16)
        else { throw unexpected() }
        at += 4
        return value
    }
}
