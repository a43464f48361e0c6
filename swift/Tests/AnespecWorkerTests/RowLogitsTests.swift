import XCTest

@testable import AnespecWorker

final class RowLogitsTests: XCTestCase {
    private let inf: UInt16 = 0x7C00, minusInf: UInt16 = 0xFC00, nan: UInt16 = 0x7E00, minusNaN: UInt16 = 0xFE00
    private let one: UInt16 = 0x3C00, minusOne: UInt16 = 0xBC00, minusZero: UInt16 = 0x8000

    private func bestToken(_ slices: [UInt16]...) -> Int? {
        var first = 0
        let all = slices.map { bits in
            defer { first += bits.count }
            return LogitSlice(first: first, bits: bits)
        }
        return best(all)?.token
    }

    func testBestIsTheLargestAndLowest() {
        XCTAssertEqual(bestToken([minusOne, one, one, 0]), 1)
        XCTAssertEqual(bestToken([minusOne, minusZero, 0]), 1)
        XCTAssertEqual(bestToken([minusOne, 0xBC01, minusOne]), 0)
        XCTAssertEqual(bestToken([0, one], [one], [0x3C01]), 3)
        XCTAssertEqual(bestToken([0, minusZero], [minusZero]), 0)
    }

    func testWhatIsNotFiniteIsNamed() {
        XCTAssertEqual(bestToken([one, inf, nan, one]), 2)
        XCTAssertEqual(bestToken([one, inf, minusInf]), 2)
        XCTAssertEqual(bestToken([nan, minusInf, minusNaN, minusNaN]), 2)
        XCTAssertEqual(bestToken([one], [minusInf], [nan]), 1)
    }

    func testTopIsASortedPrefix() {
        var random = SeededGenerator(state: 7)
        for _ in 0..<200 {
            let cut = Int.random(in: 1..<200, using: &random)
            let bits = (0..<200).map { _ in UInt16.random(in: 0...UInt16.max, using: &random) & 0xFF0F }
            let slices = [LogitSlice(first: 0, bits: Array(bits[..<cut])), LogitSlice(first: cut, bits: Array(bits[cut...]))]
            let sorted = bits.enumerated().map { Candidate(token: $0, bits: $1) }
                .sorted { ($1.rank, $0.token) < ($0.rank, $1.token) }
            for count in [0, 1, 5, 64, 65, 300] { XCTAssertEqual(top(slices, count), Array(sorted.prefix(count))) }
        }
    }
}
