//! Loops to count the instructions of: `ci/instructions` runs each under callgrind, which counts in the loop alone. Free of
//! noise, and so a second opinion on what `compare` says.

use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The operations of one loop.
const ROUNDS: u32 = 10_000;

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("permits are free"),
    }
}

#[inline(never)]
fn try_tollgate(semaphore: &tollgate::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(black_box(semaphore).try_acquire())));
}

#[inline(never)]
fn try_tokio(semaphore: &tokio::sync::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(black_box(semaphore).try_acquire())));
}

#[inline(never)]
fn await_tollgate(semaphore: &tollgate::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(ready(black_box(semaphore).acquire()))));
}

#[inline(never)]
fn await_tokio(semaphore: &tokio::sync::Semaphore) {
    (0..ROUNDS).for_each(|_| drop(black_box(ready(black_box(semaphore).acquire()))));
}

fn main() {
    let (ours, theirs) = (tollgate::Semaphore::new(4), tokio::sync::Semaphore::new(4));
    match std::env::args().nth(1).as_deref() {
        Some("try_tollgate") => try_tollgate(&ours),
        Some("try_tokio") => try_tokio(&theirs),
        Some("await_tollgate") => await_tollgate(&ours),
        Some("await_tokio") => await_tokio(&theirs),
        _ => println!("ci/instructions counts these loops"),
    }
}
