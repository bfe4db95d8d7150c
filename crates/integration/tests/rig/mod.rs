//! The rig that tests remote permits with faults: real servers, processes of their own, and a proxy between them.
//!
//! | part | what it is |
//! |---|---|
//! | [`instant`] | one clock for all processes of a machine |
//! | [`history`] | the events of a process, a line of JSON for each, on disk before it goes on |
//! | [`checker`] | reads the histories of a run and reports violations |
//! | [`proxy`] | a hop between client and server that delays, swallows, cuts, or loses replies, and counts exchanges |
//! | [`server`] | a server of the rig's own: stopped, continued, killed, restarted with nothing |
//! | [`contender`] | a client with many tasks that take permits and give them back |
//! | [`spender`] | the same client at a rate and a window |
//! | [`tenants`] | the same client at keys with policies of four legs |
//! | [`process`] | the test binary run again as a client |
//! | [`run`] | sixty seconds of everything that can go wrong |
//!
//! None of it knows its store: [`server::Store`] is the interface to start a store, and to list its keys.

pub(crate) mod checker;
pub(crate) mod contender;
pub(crate) mod history;
pub(crate) mod instant;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod spender;
pub(crate) mod tenants;
