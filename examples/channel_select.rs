//! A permit, or shutdown, whichever comes first.
//!
//! Workers wait in one `select!` for a permit of a `ChannelSemaphore` and for the end of the program. The permit is the
//! message that they receive, so a branch that does not want it any more just drops it.
//!
//! ```text
//! cargo run --example channel_select --features channel -- --workers 8 --limit 3
//! ```

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use crossbeam_channel::{Receiver, bounded, select};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use tollgate::{ChannelSemaphore, ChannelToken};

/// Waits for a permit or for shutdown, and asserts that no permit is lost on the way.
#[derive(Parser)]
struct Args {
    /// How many threads want permits.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    workers: usize,
    /// How many permits there are.
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1_000))]
    limit: usize,
}

/// A permit; nothing when it is time to go. Shutdown goes before a permit that comes at the same time.
fn permit_or_shutdown(permits: &Receiver<ChannelToken>, shutdown: &Receiver<()>) -> Option<ChannelToken> {
    select! {
        recv(shutdown) -> _ => None,
        recv(permits) -> token => {
            let token = token.ok()?;
            // `select!` picks at random when both are there. This branch has lost, and dropping its token gives it back.
            if is_over(shutdown) { None } else { Some(token) }
        }
    }
}

/// Nothing is ever sent: shutdown is that the other side is dropped.
fn is_over(shutdown: &Receiver<()>) -> bool {
    shutdown.try_recv() == Err(crossbeam_channel::TryRecvError::Disconnected)
}

/// Shutdown and permits are both there: whichever branch was taken, no permit is.
fn the_losing_branch_gives_its_token_back(limit: usize) {
    let semaphore = ChannelSemaphore::new(limit);
    let (running, shutdown) = bounded::<()>(0);
    let permit = permit_or_shutdown(semaphore.receiver(), &shutdown);
    assert!(permit.is_some(), "the program runs, and a permit is free");
    assert_eq!(semaphore.in_use(), 1);
    drop((permit, running));
    for _ in 0..1_000 {
        assert!(permit_or_shutdown(semaphore.receiver(), &shutdown).is_none());
        assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, limit));
    }
    println!("1000 times both were there: shutdown won, and all {limit} permits are free");
}

/// Workers take permits until shutdown. By then the limit is zero, so that callers are blocked in the select when
/// it comes.
fn workers_stop_and_nothing_is_held(args: &Args) {
    let semaphore = ChannelSemaphore::new(args.limit);
    let (running, shutdown) = bounded::<()>(0);
    let (at_once, peak, jobs) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..args.workers {
            scope.spawn(|| {
                while let Some(permit) = permit_or_shutdown(semaphore.receiver(), &shutdown) {
                    let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
                    peak.fetch_max(now, Ordering::SeqCst);
                    jobs.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    at_once.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            });
        }
        while jobs.load(Ordering::SeqCst) < 1_000 {
            thread::yield_now();
        }
        // From now on no permit is granted: callers are blocked until shutdown ends their select.
        semaphore.set_limit(0);
        drop(running);
    });
    let (peak, jobs) = (peak.into_inner(), jobs.into_inner());
    assert!(peak <= args.limit, "{peak} at once, {} allowed", args.limit);
    assert_eq!((semaphore.in_use(), semaphore.debt()), (0, 0));
    println!(
        "{} workers did {jobs} jobs, at most {peak} at once, and stopped",
        args.workers
    );
}

fn main() {
    let args = Args::parse();
    the_losing_branch_gives_its_token_back(args.limit);
    workers_stop_and_nothing_is_held(&args);
}
