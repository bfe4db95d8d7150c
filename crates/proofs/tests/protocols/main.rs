//! Models of the protocols between clients and stores, searched over all interleavings with up to two faults.
//!
//! The steps are the library's own: this crate compiles the sources of the client and of the reference of the stores once more, over a
//! clock of its own. What is modelled is the world around them: the network, the server, the process, and time. A space is finite,
//! since states that differ only by the time, by numbers that grow, or by the names of clients are one state.

#[allow(dead_code, unreachable_pub, reason = "a model needs a part of each source")]
#[path = "../../../../src/rng.rs"]
mod rng;

#[allow(dead_code, reason = "a model needs a part of each source")]
#[path = "../../../tollgate-stores/src/document.rs"]
mod document;

mod canonical;
mod consul;
mod nodes;
mod remote;
mod search;
mod time;

/// What the sources import.
mod core {
    pub(crate) mod refusal {
        pub(crate) use tollgate::Reason;
    }
    pub(crate) mod ticket {
        pub(crate) use tollgate::Ticket;
    }
}

mod rate {
    pub(crate) use tollgate::Quota;
}
