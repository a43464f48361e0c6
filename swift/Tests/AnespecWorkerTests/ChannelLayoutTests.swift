import XCTest

@testable import AnespecWorker

final class ChannelLayoutTests: XCTestCase {
    private func shape(_ sizes: [Int?]) throws -> Shape {
        try Shape(.array(sizes.map { $0.map { .integer($0) } ?? .null }), "x")
    }

    func testChannelTensorsAloneAreLaidOut() throws {
        XCTAssertEqual(ChannelLayout.rowsThird.sizes(try shape([1, 6, nil, 1]), 4), [1, 6, 4, 1])
        XCTAssertEqual(ChannelLayout.rowsLast.sizes(try shape([1, 6, nil, 1]), 4), [1, 6, 1, 4])
        for sizes: [Int?] in [[1, 1, nil, 64], [1, 1, 64, nil], [nil, 32], [1, 6, 4, 1]] {
            XCTAssertNil(try shape(sizes).channels)
            XCTAssertEqual(ChannelLayout.rowsLast.sizes(try shape(sizes), 4), try shape(sizes).at(4))
        }
    }

    func testARowIsReadAtItsStrides() {
        // Three channels of two rows; every row of memory is padded to four numbers.
        var memory: [UInt16] = [1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0, 0]
        memory.withUnsafeMutableBytes { bytes in
            let last = StridedTensor(bytes.baseAddress!, [1, 3, 1, 2], strides: [12, 4, 4, 1])
            XCTAssertEqual(ChannelTensor(tensor: last, layout: .rowsLast).row(1), [2, 4, 6])
            let third = StridedTensor(bytes.baseAddress!, [1, 3, 2, 1], strides: [12, 4, 1, 1])
            XCTAssertEqual(ChannelTensor(tensor: third, layout: .rowsThird).row(0), [1, 3, 5])
        }
    }

    func testAnUnknownLayoutIsRefused() throws {
        let told = try JSONParser.parse(Array(#"{"name":null,"rows":[4],"layout":"rows_first"}"#.utf8))
        XCTAssertThrowsError(try FunctionSpec(told, "function")) { error in
            XCTAssertEqual((error as? WorkerError)?.text, "function has the unknown layout \"rows_first\"")
        }
    }
}
