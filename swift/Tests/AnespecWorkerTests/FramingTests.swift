import XCTest
@testable import AnespecWorker
final class FramingTests: XCTestCase {
    func testNothing() {}
}
