import XCTest

@testable import AnespecWorker

final class ArenaTests: XCTestCase {
    private let good = TestArena([("x@4", 100), ("hidden", 40000), ("logits", 2)])

    private func refusal(_ damage: (inout [UInt8]) -> Void) -> String? {
        var arena = good
        damage(&arena.bytes)
        do {
            _ = try arena.open()
            return nil
        } catch {
            XCTAssertEqual((error as? WorkerError)?.kind, .arena)
            return (error as? WorkerError)?.text
        }
    }

    private func put(_ value: some FixedWidthInteger, at place: Int) -> (inout [UInt8]) -> Void {
        { bytes in bytes.replaceSubrange(place..<place + MemoryLayout.size(ofValue: value), with: little(value)) }
    }

    func testEntriesLieWhereTheTableSays() throws {
        let arena = try good.open()
        XCTAssertEqual(arena.entries["hidden"], Arena.Entry(offset: 2 * TestArena.step, bytes: 40000))
        arena["x@4"] = [1, 2, 3]
        XCTAssertEqual(Array(arena["x@4"].prefix(4)), [1, 2, 3, 0])
        XCTAssertThrowsError(try arena.pointer("x@4", bytes: 101))
        XCTAssertThrowsError(try arena.pointer("y", bytes: 1))
    }

    func testAnotherMagicProtocolOrBuildIsNamed() {
        XCTAssertEqual(refusal { $0[0] = 0 }, "the arena begins with 004e455350454341 and not with 414e455350454341")
        XCTAssertEqual(refusal(put(UInt32(2), at: 8)), "the arena is of protocol 2, this worker of protocol 1")
        let refused = refusal { $0[24] = 0xAB } ?? ""
        XCTAssertTrue(refused.contains("from ab00") && refused.contains("from 0000"), refused)
    }

    func testWhatLeavesTheArenaOrOverlapsIsRefused() {
        let entry = 4096
        let cases: [(String, (inout [UInt8]) -> Void)] = [
            ("arena bytes", put(UInt64.max, at: 16)), ("arena bytes", put(UInt64(100), at: 16)),
            ("header bytes", put(UInt32(64), at: 12)), ("entry bytes", put(UInt32(0), at: 68)),
            ("table", put(UInt64(1 << 40), at: 56)), ("table", put(UInt64(0), at: 56)),
            ("count", put(UInt32.max, at: 64)),
            ("unpadded name", { $0[entry + 60] = 65 }), ("empty name", { $0[entry] = 0 }),
            ("no UTF-8", { $0[entry] = 0xFF }),
            ("misaligned", put(UInt64(TestArena.step + 2), at: entry + 64)),
            ("in the header", put(UInt64(0), at: entry + 64)),
            ("far", put(UInt64(1) << 62, at: entry + 64)), ("negative", put(UInt64.max, at: entry + 64)),
            ("long", put(UInt64.max, at: entry + 72)), ("empty", put(UInt64(0), at: entry + 72)),
            ("overlap", put(UInt64(TestArena.step + 1), at: entry + 72)),
            ("twice", { $0.replaceSubrange(entry..<entry + 64, with: $0[entry + 80..<entry + 144]) }),
            ("table over an entry", put(UInt64(2 * TestArena.step), at: 56)),
        ]
        for (name, damage) in cases { XCTAssertNotNil(refusal(damage), name) }
    }

    func testShortFilesAndNoFilesAreRefused() {
        XCTAssertNotNil(refusal { $0 = Array($0.prefix(100)) })
        XCTAssertNotNil(refusal { $0 = [] })
        XCTAssertThrowsError(try Arena(descriptor: -1))
    }

    func testNoDamageEndsTheProcess() {
        var random = SeededGenerator(state: 1)
        for _ in 0..<1000 {
            _ = refusal { bytes in
                for _ in 0..<3 { bytes[Int.random(in: 0..<4096 + 240, using: &random)] = UInt8.random(in: 0...255, using: &random) }
            }
        }
    }
}
