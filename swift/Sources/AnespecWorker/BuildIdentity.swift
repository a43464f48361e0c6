/// The SHA-256 of the sources from which this worker was built.
///
/// `anespec worker build` replaces the zeros in its copy of the sources; a worker built by hand has zeros.
public let buildIdentity = "0000000000000000000000000000000000000000000000000000000000000000"

/// The version of the messages and of the arena's layout (docs/worker.md).
public let protocolVersion: UInt32 = 1
