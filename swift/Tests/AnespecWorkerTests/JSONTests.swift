import XCTest

@testable import AnespecWorker

final class JSONTests: XCTestCase {
    private func parsed(_ text: String) throws -> JSON {
        try JSONParser.parse(Array(text.utf8))
    }

    func testValuesComeBack() throws {
        let value = JSON.object([
            "a": .array([.integer(-3), .number(0.5), .bool(true), .null]), "b\n\"\\é\u{1}😀": .string("x/\u{7f}"),
            "big": .integer(Int.max), "e": .object([:]), "f": .array([]),
        ])
        XCTAssertEqual(try JSONParser.parse(value.encoded), value)
        XCTAssertEqual(try parsed(" {\"a\" : [1 , 2.5e1]}\n"), .object(["a": .array([.integer(1), .number(25)])]))
        XCTAssertEqual(try parsed("\"\\u00e9\\ud83d\\ude00\\/\\t\""), .string("é😀/\t"))
        XCTAssertEqual(JSON.number(.infinity).encoded, Array("null".utf8))
    }

    func testWhatIsNoJSONIsRefused() {
        let wrong = [
            "", "{", "[1,]", "{\"a\":1,}", "{\"a\":1,\"a\":2}", "{a:1}", "nul", "1 2", "+1", "--1", ".5", "1e999", "\"\\x\"",
            "\"\\ud800\"", "\"\\udc00\"", "\"\u{1}\"", "\"a", "{\"a\"}", "[1 2]", "NaN", "1-", "\"\\u12g4\"", "\"\\u+123\"",
        ]
        for text in wrong { XCTAssertThrowsError(try parsed(text), text) }
        XCTAssertThrowsError(try JSONParser.parse([34, 0xFF, 34]))
        XCTAssertThrowsError(try parsed(String(repeating: "[", count: 100_000)))
    }
}
