// Needs the stand-in for Core ML.
#if os(Linux)
import XCTest

@testable import AnespecWorker

final class HostileTests: XCTestCase {
    private var server: ToyServer!

    override func setUp() {
        server = ToyServer(ToyChain.models)
    }

    override func tearDown() {
        server.stop()
        unsetenv("ANESPEC_STANDIN_SERVER")
    }

    private func kind(_ reply: JSON) -> JSON { reply["error"]["kind"] }

    func testWrongMessagesAreRefusedAndTheWorkerGoesOn() throws {
        let worker = Worker(arena: try ToyChain.arena())
        XCTAssertEqual(kind(try worker.ask("{\"id\":1,\"op\":\"pass\",\"rows\":4,\"homes\":[],\"head\":null,\"wanted\":[]}")), .string("request"))
        XCTAssertEqual(try worker.ask(ToyChain.load())["ok"], .bool(true))
        let wrong = [
            "\"op\":\"fly\"", "\"op\":7", "\"op\":\"stats\",\"extra\":1", "\"op\":\"load\"",
            "\"op\":\"load\",\"compute_units\":\"all\",\"reshape_hint\":\"often\",\"vocabulary\":7,\"stages\":[]",
            "\"op\":\"load\",\"compute_units\":\"all\",\"first_passes\":1,\"vocabulary\":7,\"stages\":[]",
            "\"op\":\"run\",\"stage\":3,\"rows\":4", "\"op\":\"run\",\"stage\":-1,\"rows\":4", "\"op\":\"run\",\"stage\":0,\"rows\":3",
            "\"op\":\"run\",\"stage\":1,\"rows\":2,\"homes\":[[0,0],[8,0]]", "\"op\":\"run\",\"stage\":1,\"rows\":2,\"homes\":[[0,0]]",
            "\"op\":\"copy_slots\",\"pool\":0,\"source\":6,\"target\":0,\"count\":3", "\"op\":\"copy_slots\",\"pool\":0,\"source\":0,\"target\":8,\"count\":1",
            "\"op\":\"export\",\"pool\":0,\"first\":0,\"count\":9", "\"op\":\"export\",\"pool\":0,\"first\":9223372036854775807,\"count\":1",
            "\"op\":\"import\",\"pool\":0,\"first\":-1,\"count\":1", "\"op\":\"export\",\"pool\":1.5,\"first\":0,\"count\":1",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[9,0,0,0]],\"head\":null,\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0],[0,0,0]],\"head\":null,\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":3,\"homes\":[[0,0,0],[0,0,0]],\"head\":null,\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":4,\"lanes\":[1,0,2,3]},\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[0,4]},\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":3,\"lanes\":[0,1,2]},\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[0,1,2]},\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[]},\"wanted\":[]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[0,1]},\"wanted\":[{\"lane\":2,\"best\":true,\"top\":0,\"chosen\":[],\"logits\":null}]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[0,1]},\"wanted\":[{\"lane\":1,\"best\":true,\"top\":0,\"chosen\":[7],\"logits\":null}]",
            "\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[0,1]},\"wanted\":[{\"lane\":1,\"best\":true,\"top\":0,\"chosen\":[],\"logits\":-1}]",
        ]
        for fields in wrong {
            XCTAssertEqual(kind(try worker.ask("{\"id\":5,\(fields)}")), .string("request"), fields)
        }
        let beyond = "{\"id\":5,\"op\":\"pass\",\"rows\":4,\"homes\":[[0,0,0,0],[0,0,0,0]],\"head\":{\"rows\":2,\"lanes\":[0,1]},\"wanted\":[{\"lane\":1,\"best\":true,\"top\":0,\"chosen\":[],\"logits\":2}]}"
        XCTAssertEqual(kind(try worker.ask(beyond)), .string("arena"))
        XCTAssertEqual(try worker.ask("{\"id\":6,\"op\":\"stats\"}")["passes"], .integer(0))
    }

    func testWrongLoadsLeaveNothingBehind() throws {
        let worker = Worker(arena: try ToyChain.arena())
        func refused(_ stage: Int, _ text: String, _ instead: String, as expected: String) throws {
            var stages = ToyChain.stages
            XCTAssertTrue(stages[stage].contains(text), text)
            stages[stage] = stages[stage].replacingOccurrences(of: text, with: instead)
            XCTAssertEqual(kind(try worker.ask(ToyChain.load(stages))), .string(expected), instead)
        }
        try refused(0, "/toy/a", "/toy/none", as: "load")
        try refused(0, "\"name\":\"x\"", "\"name\":\"y\"", as: "load")
        try refused(0, "\"name\":\"k\"", "\"name\":\"q\"", as: "load")
        try refused(0, "\"name\":\"k\",\"shape\":[1,2,8,3]", "\"name\":\"k\",\"shape\":[1,2,9,3]", as: "load")
        try refused(0, "hidden.1", "hidden.9", as: "arena")
        try refused(0, "[1,2,null,1],\"buffer\":\"hidden.1\"", "[1,9,null,1],\"buffer\":\"hidden.1\"", as: "arena")
        try refused(0, "[1,2,null,1],\"buffer\":\"hidden.1\"", "[2147483647,2147483647,2147483647,1],\"buffer\":\"hidden.1\"", as: "request")
        try refused(0, "[1,2,8,3]", "[0,2,8,3]", as: "request")
        try refused(0, "[2]", "[2,4]", as: "request")
        try refused(0, "[2]", "[0]", as: "request")
        try refused(1, "\"new\":\"new_v\",", "\"new\":7,", as: "request")
        try refused(1, "\"new_v\"", "\"new_w\"", as: "load")
        try refused(2, "\"first_token\":0", "\"first_token\":1", as: "request")
        try refused(2, "\"kind\":\"head\"", "\"kind\":\"tail\"", as: "request")
        try refused(0, "\"kind\":\"layers\"", "\"kind\":\"head\"", as: "request")
        try refused(2, "[1,4,null,1]", "[1,null,4,1]", as: "request")
        try refused(0, "\"buffer\":\"hidden.0\"", "\"dtype\":\"int64\",\"buffer\":\"hidden.0\"", as: "request")
        try refused(0, "\"buffer\":\"hidden.0\"", "\"dtype\":\"int32\",\"buffer\":\"hidden.0\"", as: "arena")
        try refused(0, "\"buffer\":\"hidden.1\"", "\"dtype\":\"int32\",\"buffer\":\"hidden.1\"", as: "request")
        try refused(2, "\"buffer\":\"hidden.2\"", "\"dtype\":\"int32\",\"buffer\":\"hidden.2\"", as: "request")
        XCTAssertEqual(try worker.ask(ToyChain.load())["ok"], .bool(true))
        XCTAssertEqual(kind(try worker.ask(ToyChain.load())), .string("request"))
    }

    func testNoMessageEndsTheProcess() throws {
        let worker = Worker(arena: try ToyChain.arena())
        XCTAssertEqual(try worker.ask(ToyChain.load())["ok"], .bool(true))
        let whole = Array(
            """
            {"id":2,"op":"pass","rows":4,"homes":[[0,1,2,-1],[5,-1,0,1]],"head":{"rows":2,"lanes":[0,1]},"wanted":[{"lane":1,"best":true,"top":2,"chosen":[6,0],"logits":1}]}
            """.utf8)
        var random = SeededGenerator(state: 3)
        for _ in 0..<2000 {
            var message = whole
            for _ in 0..<Int.random(in: 1...4, using: &random) {
                let at = message.indices.randomElement(using: &random)!
                switch Int.random(in: 0...2, using: &random) {
                case 0: message[at] = whole.randomElement(using: &random)!
                case 1: message.remove(at: at)
                default: message.insert(whole.randomElement(using: &random)!, at: at)
                }
            }
            let reply = try JSONParser.parse(worker.answer(message).reply)
            XCTAssertNotEqual(reply["ok"], .null)
        }
    }
}
#endif
