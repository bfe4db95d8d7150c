//! What a resource learns from fencing tokens, beside a holder that was suspended. In virtual time.

use crate::remote::world::World;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{Fence, FenceGuard, Memory, Prefetch, Remote, RemoteBuilder};

const TTL: Duration = Duration::from_secs(4);

type Shared = Remote<Arc<Memory>>;

struct Machines(World);

impl Machines {
    fn new() -> Self {
        Self(World::new())
    }

    fn permits(&self, limit: u64) -> RemoteBuilder {
        Remote::permits(self.0.key.clone(), limit).ttl(TTL)
    }

    fn machine(&self, limit: u64) -> Shared {
        self.0.make(self.permits(limit))
    }

    /// A machine that holds a permit, and is suspended for ever right after. It still has its token.
    fn suspended(&self, limit: u64) -> Fence {
        let (clock, store) = (&self.0.clock, Arc::clone(&self.0.store));
        let (remote, driver) = self.permits(limit).on(clock).build(store).unwrap();
        let permit = clock.run(async {
            let (mut acquired, mut driver) = (Box::pin(remote.acquire(1)), driver);
            std::future::poll_fn(|cx| {
                let _ = std::pin::Pin::new(&mut driver).poll(cx);
                acquired.as_mut().poll(cx)
            })
            .await
            .unwrap()
        });
        let fence = permit.fence().unwrap();
        std::mem::forget(permit);
        std::mem::forget(remote);
        fence
    }

    fn run_out(&self) {
        self.0.clock.advance(TTL);
        self.0.clock.advance(TTL);
    }
}

#[test]
fn with_one_permit_the_last_holder_shuts_out_all_before_it() {
    let world = Machines::new();
    let mut guard = FenceGuard::default();
    let mut stale = Vec::new();
    for _ in 0..3 {
        let fence = world.suspended(1);
        assert_eq!(fence.floor, fence.token);
        guard.check(fence).unwrap();
        stale.push(fence);
        world.run_out();
    }
    let last = stale.pop().unwrap();
    for fence in stale {
        let refused = guard.check(fence).unwrap_err();
        assert_eq!((refused.token, refused.floor), (fence.token, last.token));
    }
    guard.check(last).unwrap();
    // It is as good as its memory.
    assert!(FenceGuard { floor: guard.floor }.check(last).is_ok());
}

/// One task of a process lost its permit and does not know; the process has learned since that another was granted one.
#[test]
fn a_fence_that_shows_itself_that_it_is_stale_is_refused() {
    let mut guard = FenceGuard { floor: 5 };
    let mut fence = Machines::new().suspended(1);
    fence.token = 5;
    assert!(guard.check(fence).is_err_and(|stale| stale.floor == fence.floor));
    fence.token = fence.floor;
    guard.check(fence).unwrap();
}

#[test]
fn with_several_permits_a_holder_older_than_all_live_ones_is_fenced_off() {
    let world = Machines::new();
    let mut guard = FenceGuard::default();
    let lost = world.suspended(3);
    let (one, other) = (world.machine(3), world.machine(3));
    world.0.clock.run(async {
        let first = one.acquire(1).await.unwrap();
        // No permit was released: all three are good, in any order.
        let second = other.acquire(1).await.unwrap();
        let fences = [second.fence().unwrap(), lost, first.fence().unwrap()];
        assert!(
            fences
                .iter()
                .all(|&fence| guard.check(fence).is_ok() && fence.floor == lost.token)
        );
        world.run_out();
        let third = other.acquire(1).await.unwrap();
        let fence = third.fence().unwrap();
        assert!(lost.token < first.fence().unwrap().token && fence.floor > lost.token);
        guard.check(fence).unwrap();
        assert!(guard.check(lost).is_err());
        for live in [&first, &second, &third] {
            guard.check(live.fence().unwrap()).unwrap();
        }
    });
}

/// The documented limits of a fencing token.
#[test]
fn one_that_was_lost_after_another_that_lives_passes() {
    let world = Machines::new();
    let mut guard = FenceGuard::default();
    let one = world.machine(2);
    world.0.clock.run(async {
        let old = one.acquire(1).await.unwrap();
        let lost = world.suspended(2);
        world.run_out();
        let next = one.acquire(1).await.unwrap();
        guard.check(next.fence().unwrap()).unwrap();
        assert!(guard.check(lost).is_ok());
        drop(old);
        let third = one.acquire(1).await.unwrap();
        guard.check(third.fence().unwrap()).unwrap();
        assert!(guard.check(lost).is_err());
    });
}

/// A permit of a block is used again and again: a held part of an old grant keeps its token valid, and no longer.
#[test]
fn the_floor_rises_as_permits_of_a_block_are_used_again() {
    let world = Machines::new();
    let one = world.0.make(world.permits(8).prefetch(Prefetch::up_to(4)));
    let other = world.machine(8);
    world.0.clock.run(async {
        let mut guard = FenceGuard::default();
        let first = one.acquire(1).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(one.acquire(2).await.unwrap());
        }
        let oldest = first.fence().unwrap();
        let seen = other.acquire(1).await.unwrap().fence().unwrap();
        assert_eq!(seen.floor, oldest.token);
        for permit in &held {
            guard.check(permit.fence().unwrap()).unwrap();
        }
        drop((first, held));
        // The store learns it with the next request.
        world.0.clock.advance(TTL / 2);
        let again = one.acquire(4).await.unwrap().fence().unwrap();
        world.0.clock.advance(TTL / 2);
        let seen = other.acquire(1).await.unwrap().fence().unwrap();
        assert!(seen.floor > oldest.token && again.token >= seen.floor.min(again.token));
        guard.check(seen).unwrap();
        assert!(guard.check(oldest).is_err());
    });
}
