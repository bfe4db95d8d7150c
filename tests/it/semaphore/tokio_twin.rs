//! One source file, `twin/program.rs`, compiled twice: over `tokio::sync` and over this crate. Only the import differs,
//! and both must see the same.
//!
//! Known to differ, and left out: after `close`, until the queued futures have looked, tokio does not count as free what
//! it had set apart for the first of them; tokio's `add_permits` looks at what is free, and not at what is held, so that
//! it can panic later, in the drop of a permit, and it has added the permits when it panics; tokio's blocking methods
//! panic inside a runtime. A type's `Debug` form is its own.

#![allow(clippy::duplicate_mod, reason = "one source, compiled twice on purpose")]

use proptest::prelude::*;

#[path = "twin"]
mod theirs {
    mod sync {
        pub(super) use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError};
    }
    #[path = "program.rs"]
    pub(super) mod program;
}

#[path = "twin"]
mod ours {
    mod sync {
        pub(super) use tollgate::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError};
    }
    #[path = "program.rs"]
    pub(super) mod program;
}

/// What a program saw, line by line.
pub(crate) type Trace = Vec<String>;

/// One step of a random program. An index is taken modulo how many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Try(u32),
    Wait(u32),
    Poll(usize),
    Leave(usize),
    Release(usize),
    Forget(usize),
    Split(usize, usize),
    Merge(usize),
    Add(usize),
    Remove(usize),
    Close,
}

#[track_caller]
fn same(tokio: Trace, own: Trace) {
    assert!(!tokio.is_empty());
    assert_eq!(tokio, own);
}

#[test]
fn taking_and_giving_back_is_as_in_tokio() {
    same(
        theirs::program::takes_and_gives_back(),
        ours::program::takes_and_gives_back(),
    );
}

#[test]
fn merging_splitting_and_forgetting_is_as_in_tokio() {
    same(
        theirs::program::merges_splits_and_forgets(),
        ours::program::merges_splits_and_forgets(),
    );
}

/// Keeps out tokio#3095, tokio#2514, tokio#5144, tokio#2539.
#[test]
fn panics_are_those_of_tokio() {
    same(
        theirs::program::panics_where_documented(),
        ours::program::panics_where_documented(),
    );
}

/// Keeps out async-lock#41.
#[test]
fn waiting_and_closing_is_as_in_tokio() {
    same(theirs::program::waits_and_closes(), ours::program::waits_and_closes());
}

/// Keeps out wasmtime#7623.
#[test]
fn blocked_threads_fare_as_in_tokio() {
    same(theirs::program::blocks_threads(), ours::program::blocks_threads());
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..5_u32).prop_map(Op::Try),
        8 => (0..6_u32).prop_map(Op::Wait),
        16 => any::<usize>().prop_map(Op::Poll),
        4 => any::<usize>().prop_map(Op::Leave),
        8 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::Forget),
        2 => (any::<usize>(), 0..4_usize).prop_map(|(at, n)| Op::Split(at, n)),
        2 => any::<usize>().prop_map(Op::Merge),
        3 => (0..4_usize).prop_map(Op::Add),
        2 => (0..4_usize).prop_map(Op::Remove),
        // Rarely: few operations follow it.
        1 => prop_oneof![6 => Just(Op::Add(1)), 1 => Just(Op::Close)],
    ]
}

proptest! {
    #![proptest_config(crate::cases(1_000))]
    /// Keeps out async-lock#91.
    #[test]
    fn any_program_on_one_thread_sees_what_it_sees_with_tokio(
        permits in 0..6_usize,
        ops in prop::collection::vec(op(), 0..120),
    ) {
        prop_assert_eq!(theirs::program::run(permits, &ops), ours::program::run(permits, &ops));
    }
}
