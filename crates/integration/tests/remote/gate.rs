//! `Remote`, as the rig uses a semaphore across machines.

use crate::rig::contender::{Gate, Held};
use crate::rig::spender::{BURST, LENGTH, LIMIT, METERS, Meter, RATE, Tap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tollgate::Quota;
use tollgate::remote::{Backend, Key, Lost, OwnedRemotePermit, Remote, RemoteError};

/// A semaphore of this name at `store`.
pub(crate) fn gate<B: Backend + Clone>(store: B, name: &str, limit: u64, ttl: Duration) -> RemoteGate<B> {
    let key = Key::new(name).expect("a name");
    let remote = Remote::permits(key, limit)
        .ttl(ttl)
        .spawn(store.clone())
        .expect("settings that can be");
    RemoteGate {
        remote: Arc::new(remote),
        name: name.into(),
        store,
        ttl,
    }
}

pub(crate) struct RemoteGate<B: Backend> {
    remote: Arc<Remote<B>>,
    store: B,
    name: String,
    ttl: Duration,
}

/// A rate, or a window.
pub(crate) struct RemoteTap<B: Backend>(Remote<B>);

impl<B: Backend> Tap for RemoteTap<B> {
    async fn take(&self) -> Result<(), String> {
        let taken = self.0.acquire(1).await;
        taken.map(|taken| taken.forget()).map_err(|refused| refused.to_string())
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// A permit, and the future of its loss.
pub(crate) struct RemoteHeld<B: Backend> {
    permit: OwnedRemotePermit<B>,
    lost: Pin<Box<Lost<B>>>,
}

impl<B: Backend + Clone> Gate for RemoteGate<B> {
    type Permit = RemoteHeld<B>;
    type Tap = RemoteTap<B>;

    fn taps(&self) -> Vec<(Meter, RemoteTap<B>)> {
        let key = |what| Key::new(format!("{}-{what}", self.name)).expect("a name");
        let tap = |meter| {
            let builder = match meter {
                Meter::Rate => Remote::rate(key("rate"), Quota::per_second(RATE).burst(BURST)),
                Meter::Window => Remote::window(key("window"), LIMIT, LENGTH),
            };
            match builder.ttl(self.ttl).spawn(self.store.clone()) {
                Err(RemoteError::Unsupported { .. }) => None,
                tap => Some((meter, RemoteTap(tap.expect("settings that can be")))),
            }
        };
        METERS.into_iter().filter_map(tap).collect()
    }

    async fn acquire(&self, weight: u64) -> Result<Self::Permit, String> {
        let acquired = Arc::clone(&self.remote).acquire_owned(weight).await;
        let permit = acquired.map_err(|refused| refused.to_string())?;
        let lost = Box::pin(permit.lost());
        Ok(RemoteHeld { permit, lost })
    }

    async fn set_limit(&self, limit: u64) -> Result<(), String> {
        self.remote.set_limit(limit).await.map_err(|error| error.to_string())
    }

    async fn close(&self) {
        self.remote.close().await;
    }
}

impl<B: Backend> Held for RemoteHeld<B> {
    fn weight(&self) -> u64 {
        self.permit.units()
    }

    fn token(&self) -> u64 {
        self.permit.fence().expect("it was counted").token
    }

    fn remaining(&self) -> Duration {
        self.permit.good_for().expect("it runs out")
    }

    async fn lost(&mut self) {
        poll_fn(|context| self.lost.as_mut().poll(context)).await;
    }
}
