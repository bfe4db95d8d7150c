//! Bytes of one waiter in a semaphore's queue, beside tokio's: its future, and what the queue allocates for it.
//!
//! `cargo bench -p tollgate-compare --bench memory`. No figure here depends on time.

use std::mem::size_of_val;
use std::task::{Context, Waker};

const WAITERS: usize = 100_000;

/// Bytes of one waiter: its future, and what the queue allocates for it; and what is left when all have gone.
macro_rules! memory {
    ($semaphore:expr, $acquire:ident) => {{
        let semaphore = $semaphore;
        let mut queue: Vec<_> = (0..WAITERS).map(|_| Box::pin(semaphore.$acquire())).collect();
        let future = size_of_val(&*queue[0]) as f64;
        let joined = allocation_counter::measure(|| {
            for waiter in &mut queue {
                assert!(
                    waiter
                        .as_mut()
                        .poll(&mut Context::from_waker(Waker::noop()))
                        .is_pending()
                );
            }
        });
        let left = allocation_counter::measure(|| {
            for waiter in &mut queue {
                // Dropped in place, so that the box that holds it does not count.
                waiter.set(semaphore.$acquire());
            }
        });
        let heap = joined.bytes_current as f64;
        (future, heap / WAITERS as f64, heap + left.bytes_current as f64)
    }};
}

fn main() {
    let ours = memory!(tollgate::Semaphore::new(0), acquire);
    let tokio = memory!(tokio::sync::Semaphore::new(0), acquire);
    println!("{:<40} {:>12} {:>12}", "bytes", "tollgate", "tokio");
    let row = |name, ours: f64, tokio: f64| println!("{name:<40} {ours:>12.1} {tokio:>12.1}");
    row("semaphore/waiter-future", ours.0, tokio.0);
    row("semaphore/waiter-queue", ours.1, tokio.1);
    row("semaphore/waiter-both", ours.0 + ours.1, tokio.0 + tokio.1);
    row("semaphore/left-when-all-have-gone", ours.2, tokio.2);
}
