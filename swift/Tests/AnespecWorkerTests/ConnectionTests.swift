import XCTest

@testable import AnespecWorker

#if os(Linux)
private let streamSocket = Int32(SOCK_STREAM.rawValue)
#else
private let streamSocket = SOCK_STREAM
#endif

final class ConnectionTests: XCTestCase {
    private var ends: [Int32] = [0, 0]

    override func setUp() {
        XCTAssertEqual(socketpair(AF_UNIX, streamSocket, 0, &ends), 0)
    }

    override func tearDown() {
        signal(SIGTERM, SIG_DFL)
        ends.forEach { close($0) }
    }

    private func received(_ raw: [UInt8], closing: Bool = true) throws -> [UInt8]? {
        XCTAssertEqual(write(ends[0], raw, raw.count), raw.count)
        if closing { shutdown(ends[0], Int32(SHUT_WR)) }
        return try Connection(descriptor: ends[1]).read()
    }

    func testMessagesAreReadAsWritten() throws {
        let message = Array("{\"id\":1}".utf8)
        XCTAssertTrue(Connection(descriptor: ends[0]).write(message))
        XCTAssertEqual(try Connection(descriptor: ends[1]).read(), message)
    }

    func testTheEndBetweenMessagesIsNoError() throws {
        XCTAssertNil(try received([]))
    }

    func testBrokenFramesAreRefused() throws {
        XCTAssertThrowsError(try received(little(UInt32(0))))
        for raw in [little(UInt32(Connection.longest + 1)), little(UInt32.max), [1, 0], little(UInt32(5)) + [1, 2]] {
            tearDown()
            setUp()
            XCTAssertThrowsError(try received(raw))
        }
    }

    func testNobodyListening() {
        close(ends[1])
        signal(SIGPIPE, SIG_IGN)
        XCTAssertFalse(Connection(descriptor: ends[0]).write([1]))
    }

    func testServingEndsAsItWasToldTo() throws {
        let arena = TestArena([("x", 2)])
        func status(_ raw: [UInt8]) -> (Int32, [UInt8]) {
            tearDown()
            setUp()
            _ = write(ends[0], raw, raw.count)
            shutdown(ends[0], Int32(SHUT_WR))
            let end = serve(socket: ends[1], arena: arena.descriptor())
            shutdown(ends[1], Int32(SHUT_WR))
            return (end, (try? Connection(descriptor: ends[0]).read()) ?? [])
        }
        func framed(_ text: String) -> [UInt8] { little(UInt32(text.utf8.count)) + Array(text.utf8) }

        XCTAssertEqual(status([]).0, 0)
        XCTAssertEqual(status(framed("{\"id\":7,\"op\":\"stop\"}")).0, 0)
        for raw in [framed("{"), framed("[]"), framed("\u{FEFF}"), little(UInt32(0)), framed("{\"op\":\"stop\"}")] {
            let (end, reply) = status(raw)
            XCTAssertEqual(end, 2)
            XCTAssertTrue(String(decoding: reply, as: UTF8.self).contains("\"id\":null"), String(decoding: raw, as: UTF8.self))
        }
        XCTAssertEqual(serve(socket: ends[1], arena: open("/dev/null", O_RDONLY)), 2)
    }
}
