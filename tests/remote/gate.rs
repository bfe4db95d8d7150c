//! `Remote`, as the rig uses a semaphore across machines.

use crate::rig::contender::{Gate, Held};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tollgate::remote::{Backend, Key, Lost, OwnedRemotePermit, Remote};

/// A semaphore of this name at `store`.
pub(crate) fn gate<B: Backend>(store: B, name: &str, limit: u64, ttl: Duration) -> RemoteGate<B> {
    let key = Key::new(name).expect("a name");
    let remote = Remote::permits(key, limit)
        .ttl(ttl)
        .spawn(store)
        .expect("settings that can be");
    RemoteGate(Arc::new(remote))
}

pub(crate) struct RemoteGate<B: Backend>(Arc<Remote<B>>);

/// A permit, and the news of its loss.
pub(crate) struct RemoteHeld<B: Backend> {
    permit: OwnedRemotePermit<B>,
    lost: Pin<Box<Lost<B>>>,
}

impl<B: Backend> Gate for RemoteGate<B> {
    type Permit = RemoteHeld<B>;

    async fn acquire(&self, weight: u64) -> Result<Self::Permit, String> {
        let acquired = Arc::clone(&self.0).acquire_owned(weight).await;
        let permit = acquired.map_err(|refused| refused.to_string())?;
        let lost = Box::pin(permit.lost());
        Ok(RemoteHeld { permit, lost })
    }

    async fn set_limit(&self, limit: u64) -> Result<(), String> {
        self.0.set_limit(limit).await.map_err(|error| error.to_string())
    }

    async fn close(&self) {
        self.0.close().await;
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
