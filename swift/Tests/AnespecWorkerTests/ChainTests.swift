// Needs the stand-in for Core ML.
#if os(Linux)
import XCTest

import CoreML

@testable import AnespecWorker

final class ChainTests: XCTestCase {
    private var server: ToyServer!

    override func setUp() {
        server = ToyServer(ToyChain.models)
    }

    override func tearDown() {
        server.stop()
        unsetenv("ANESPEC_STANDIN_SERVER")
        unsetenv("ANESPEC_STANDIN_FAULTS")
    }

    private func loaded(_ arena: Arena, _ stages: [String] = ToyChain.stages) throws -> Worker {
        let worker = Worker(arena: arena)
        XCTAssertEqual(try worker.ask(ToyChain.load(stages))["ok"], .bool(true))
        return worker
    }

    private let pass = """
        {"id":2,"op":"pass","rows":4,"homes":[[0,1,2,-1],[5,-1,0,1]],"head":{"rows":4,"lanes":[0,1,2,3]},
         "wanted":[{"lane":2,"best":true,"top":2,"chosen":[6,0],"logits":1},{"lane":0,"best":false,"top":0,"chosen":[],"logits":null}]}
        """

    func testAPassRunsThroughAllShards() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        arena["hidden.0@4"] = [10, 20, 30, 40, 50, 60, 70, 80]
        let reply = try worker.ask(pass)
        XCTAssertEqual(arena["hidden.2@4"], [12, 22, 32, 42, 52, 62, 72, 82])
        let row = reply["rows"][0]
        XCTAssertEqual(row["best"], .array([.integer(6), .integer(38)]))
        XCTAssertEqual(row["top"], .array([.array([.integer(6), .integer(38)]), .array([.integer(5), .integer(37)])]))
        XCTAssertEqual(row["chosen"], .array([.integer(38), .integer(32)]))
        XCTAssertEqual(arena["logits"].suffix(7), [32, 33, 34, 35, 36, 37, 38])
        XCTAssertEqual(reply["rows"][1], .object(["lane": .integer(0), "best": .null, "top": .array([]), "chosen": .array([])]))
        XCTAssertEqual(try worker.ask("{\"id\":3,\"op\":\"stats\"}")["copied"], .integer(0))
    }

    func testNewRowsGoToTheirHomes() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        _ = try worker.ask(pass)
        let cache = arena["cache.v"]
        func slot(_ head: Int, _ index: Int) -> UInt16 { cache[(head * ToyChain.slots + index) * 3 + 2] }
        XCTAssertEqual((0..<8).map { slot(0, $0) }, [120, 130, 0, 0, 0, 100, 0, 0])
        XCTAssertEqual((0..<8).map { slot(1, $0) }, [220, 230, 0, 0, 0, 200, 0, 0])
        // The next pass reads the values that this one wrote.
        _ = try worker.ask("{\"id\":3,\"op\":\"run\",\"stage\":1,\"rows\":4,\"homes\":[[0,0,0,0],[-1,7,-1,-1]]}")
        XCTAssertEqual(arena["cache.v"][7 * 3], 110 + 120)
        // A negative zero is written as zero.
        _ = try worker.ask("{\"id\":4,\"op\":\"run\",\"stage\":1,\"rows\":2,\"homes\":[[0,0],[7,-1]]}")
        XCTAssertEqual(arena["cache.v"][7 * 3], 0)
    }

    func testWantedLanesAreGatheredForANarrowerHead() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        arena["hidden.0@4"] = [10, 20, 30, 40, 50, 60, 70, 80]
        let reply = try worker.ask(
            """
            {"id":2,"op":"pass","rows":4,"homes":[[0,1,2,3],[-1,-1,-1,-1]],"head":{"rows":2,"lanes":[3,1]},
             "wanted":[{"lane":1,"best":true,"top":0,"chosen":[],"logits":null}]}
            """)
        XCTAssertEqual(reply["rows"][0]["best"], .array([.integer(6), .integer(28)]))
        XCTAssertEqual(arena["hidden.2@2"], [42, 22, 82, 62])
    }

    func testAHeadRunsAsOftenAsLanesAreWanted() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        arena["hidden.0@4"] = [10, 20, 30, 40, 50, 60, 70, 80]
        let wanted = [1, 0, 3].map { "{\"lane\":\($0),\"best\":true,\"top\":0,\"chosen\":[],\"logits\":null}" }
        let reply = try worker.ask(
            """
            {"id":2,"op":"pass","rows":4,"homes":[[0,1,2,3],[-1,-1,-1,-1]],"head":{"rows":2,"lanes":[3,1,0,0]},
             "wanted":[\(wanted.joined(separator: ","))]}
            """)
        let bests = (0..<3).map { reply["rows"][$0]["best"] }
        XCTAssertEqual(bests, [28, 18, 48].map { .array([.integer(6), .integer($0)]) })
        XCTAssertEqual((0..<3).map { reply["rows"][$0]["lane"] }, [.integer(1), .integer(0), .integer(3)])
        XCTAssertEqual(reply["stages"][2] == .null, false)
        XCTAssertEqual(reply["stages"][3], .null)
    }

    func testLoadingCanRunEveryWidthOnceAndLeavesNoTrace() throws {
        let arena = try ToyChain.arena()
        let worker = Worker(arena: arena)
        let asked = ToyChain.load().replacingOccurrences(of: "\"stages\":[", with: "\"first_passes\":true,\"stages\":[")
        let reply = try worker.ask(asked)
        for stage in 0..<3 {
            XCTAssertEqual((0..<2).map { reply["stages"][stage]["first_passes"][$0]["rows"] }, [.integer(2), .integer(4)])
        }
        _ = try worker.ask("{\"id\":4,\"op\":\"export\",\"pool\":0,\"first\":0,\"count\":8}")
        XCTAssertEqual(Set(arena["slots"].prefix(48)), [0])
        XCTAssertEqual(Set(arena["cache.v"]), [0])
        let stats = try worker.ask("{\"id\":3,\"op\":\"stats\"}")
        XCTAssertEqual(stats["passes"], .integer(0))
        XCTAssertEqual(stats["copied"], .integer(0))
        XCTAssertEqual(try worker.ask(pass)["rows"][1]["lane"], .integer(0))
    }

    func testSeveralWorkersShareOneArena() throws {
        let arena = try ToyChain.arena()
        let workers = try ToyChain.stages.map { try loaded(arena, [$0]) }
        arena["hidden.0@4"] = [10, 20, 30, 40, 50, 60, 70, 80]
        let replies = try workers.map { try $0.ask(pass) }
        XCTAssertEqual(replies.map { $0["ok"] }, [.bool(true), .bool(true), .bool(true)])
        XCTAssertEqual(replies[0]["rows"], .array([]))
        XCTAssertEqual(replies[2]["rows"][0]["best"], .array([.integer(6), .integer(38)]))
        XCTAssertEqual(arena["cache.v"][2], 120)
    }

    func testSlotsAreCopiedExportedAndImported() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        _ = try worker.ask("{\"id\":3,\"op\":\"run\",\"stage\":0,\"rows\":2}")
        func ask(_ fields: String) throws -> JSON { try worker.ask("{\"id\":4,\(fields)}") }
        XCTAssertEqual(try ask("\"op\":\"export\",\"pool\":0,\"first\":6,\"count\":2")["bytes"], .integer(24))
        let last: [UInt16] = [19, 20, 21, 22, 23, 24, 43, 44, 45, 46, 47, 48]
        XCTAssertEqual(Array(arena["slots"].prefix(12)), last)
        XCTAssertEqual(try ask("\"op\":\"copy_slots\",\"pool\":0,\"source\":5,\"target\":4,\"count\":3")["ok"], .bool(true))
        _ = try ask("\"op\":\"export\",\"pool\":0,\"first\":5,\"count\":2")
        XCTAssertEqual(Array(arena["slots"].prefix(12)), last)
        XCTAssertEqual(try ask("\"op\":\"import\",\"pool\":0,\"first\":0,\"count\":2")["bytes"], .integer(24))
        _ = try ask("\"op\":\"export\",\"pool\":0,\"first\":0,\"count\":1")
        XCTAssertEqual(Array(arena["slots"].prefix(6)), [19, 20, 21, 43, 44, 45])
        XCTAssertEqual(try ask("\"op\":\"export\",\"pool\":9,\"first\":0,\"count\":1")["bytes"], .integer(0))
        _ = try ask("\"op\":\"reset\"")
        _ = try ask("\"op\":\"export\",\"pool\":0,\"first\":0,\"count\":8")
        XCTAssertEqual(Set(arena["slots"].prefix(48)), [0])
    }

    func testStatesAreSharedByTheFunctionsOfAShard() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        for rows in [2, 4, 2] { _ = try worker.ask("{\"id\":3,\"op\":\"run\",\"stage\":0,\"rows\":\(rows)}") }
        _ = try worker.ask("{\"id\":4,\"op\":\"export\",\"pool\":0,\"first\":0,\"count\":1}")
        XCTAssertEqual(Array(arena["slots"].prefix(3)), [3, 6, 9])
    }

    func testOutputsThatLieElsewhereAreCopied() throws {
        try runs(where: "decline")
    }

    func testBackingsThatAreRefusedAreDoneWithout() throws {
        try runs(where: "refuse")
    }

    private func runs(where action: String) throws {
        let file = "/tmp/anespec-faults-\(getpid())"
        try Data("[{\"at\":\"predict\",\"action\":\"\(action)\"}]".utf8).write(to: URL(fileURLWithPath: file))
        defer { unlink(file) }
        setenv("ANESPEC_STANDIN_FAULTS", file, 1)
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        arena["hidden.0@4"] = [10, 20, 30, 40, 50, 60, 70, 80]
        XCTAssertEqual(try worker.ask(pass)["rows"][0]["best"], .array([.integer(6), .integer(38)]))
        XCTAssertEqual(arena["cache.v"][2], 120)
        XCTAssertEqual(try worker.ask("{\"id\":3,\"op\":\"stats\"}")["copied"], .integer(16 + 16 + 48 + 32 + 24))
    }

    func testALayerThatGivesNoNumbersIsAnError() throws {
        let arena = try ToyChain.arena()
        let worker = try loaded(arena)
        arena["hidden.0@4"] = [10, 20, 30, 0x7C00, 50, 60, 70, 80]
        let error = try worker.ask(pass)["error"]
        XCTAssertEqual(error["kind"], .string("predict"))
        XCTAssertEqual(error["text"], .string("not a number: hidden"))
        XCTAssertEqual(error["stage"], .string("/toy/a"))
        XCTAssertEqual(Set(arena["cache.v"]), [0])
    }

    func testCoreMLHearsTheHintThatIsAskedForAndNoOther() {
        func configuration(_ hint: ReshapeHint, _ function: String? = nil) -> MLModelConfiguration {
            StageLoader.configuration(.cpuAndNeuralEngine, function: function, hint: hint)
        }
        let untouched = MLModelConfiguration().optimizationHints.reshapeFrequency
        XCTAssertEqual(configuration(.none).optimizationHints.reshapeFrequency, untouched)
        XCTAssertEqual(configuration(.frequent).optimizationHints.reshapeFrequency, .frequent)
        XCTAssertEqual(configuration(.infrequent).optimizationHints.reshapeFrequency, .infrequent)
        XCTAssertEqual(configuration(.none, "rows_4").functionName, "rows_4")
        XCTAssertNil(configuration(.none).functionName)
    }
}
#endif
