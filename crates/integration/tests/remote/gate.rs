//! `Remote`, as the rig uses a semaphore across machines.

use crate::rig::contender::{Gate, Held, Semaphore, Wish};
use crate::rig::spender::{Bound, METERS, Meter, Tap};
use crate::rig::tenants::{
    LEGS, PERMITS, PERMITS_LEG, RETRY, TENANTS, TIMEOUT, Tenant, TenantGate, Tenants, UNAVAILABLE_AFTER,
};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tollgate::remote::{
    Backend, Key, KeyedLimits, Lost, OwnedRemotePermit, Remote, RemoteError, RemoteKey, RemoteKeyPermit, RemoteKeyed,
    RemoteLeg,
};
use tollgate::status::State;
use tollgate::{Ask, Cost, Quota, Reason};

const TOKENS: Cost = Cost::new("tokens");
const SLOTS: Cost = Cost::new("slots");

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

    async fn acquire(&self, wish: Wish) -> Result<Self::Permit, String> {
        let acquired = Arc::clone(&self.remote).acquire_owned(wish.weight).await;
        let permit = acquired.map_err(|refused| refused.to_string())?;
        let lost = Box::pin(permit.lost());
        Ok(RemoteHeld { permit, lost })
    }
}

impl<B: Backend + Clone> Semaphore for RemoteGate<B> {
    type Tap = RemoteTap<B>;
    type Tenants = RemoteTenants<B>;

    fn taps(&self) -> Vec<(Meter, RemoteTap<B>)> {
        let key = |what| Key::new(format!("{}-{what}", self.name)).expect("a name");
        let tap = |meter: Meter| {
            let builder = match meter.bound() {
                Bound::Rate { per_second, burst } => {
                    Remote::rate(key("rate"), Quota::per_second(per_second).burst(burst))
                }
                Bound::Window { limit, length } => Remote::window(key("window"), limit, length),
            };
            match builder.ttl(self.ttl).spawn(self.store.clone()) {
                Err(RemoteError::Unsupported { .. }) => None,
                tap => Some((meter, RemoteTap(tap.expect("settings that can be")))),
            }
        };
        METERS.into_iter().filter_map(tap).collect()
    }

    fn tenants(&self) -> Option<RemoteTenants<B>> {
        let name = Key::new(format!("{}-tenants", self.name)).expect("a name");
        let none = KeyedLimits::new(TENANTS.len(), "none", legs(&TENANTS[0]));
        let own = |limits: KeyedLimits, tenant: &Tenant| limits.key_with(tenant.name, legs(tenant));
        let limits = TENANTS.iter().fold(none, own);
        let builder = Remote::keyed(name, limits).ttl(self.ttl).timeout(TIMEOUT).retry(RETRY);
        match builder.unavailable_after(UNAVAILABLE_AFTER).build(self.store.clone()) {
            Err(RemoteError::Unsupported { .. }) => None,
            built => {
                let (keyed, driver) = built.expect("settings that can be");
                let driver = tokio::spawn(driver);
                Some(RemoteTenants { keyed, driver })
            }
        }
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

/// Four legs, of which three count calls or tokens by time.
fn legs(tenant: &Tenant) -> Vec<RemoteLeg> {
    let mut legs = vec![RemoteLeg::permits(PERMITS_LEG, PERMITS).per(SLOTS)];
    for leg in LEGS {
        let counted = match tenant.bound(leg) {
            Bound::Rate { per_second, burst } => {
                RemoteLeg::rate(leg.name(), Quota::per_second(per_second).burst(burst))
            }
            Bound::Window { limit, length } => RemoteLeg::window(leg.name(), limit, length),
        };
        legs.push(if leg.counts_tokens() {
            counted.per(TOKENS)
        } else {
            counted
        });
    }
    legs
}

/// Tenants, and the task of their driver.
pub(crate) struct RemoteTenants<B: Backend> {
    keyed: RemoteKeyed<B>,
    driver: JoinHandle<()>,
}

impl<B: Backend> Tenants for RemoteTenants<B> {
    type Key = RemoteKey<B>;

    fn key(&self, key: u32) -> RemoteKey<B> {
        self.keyed.get(Tenant::of(key).name).expect("a name")
    }

    async fn close(self) {
        drop(self.keyed);
        self.driver.await.expect("it ends");
    }
}

/// A permit of a tenant, and its weight.
pub(crate) struct RemoteKeyHeld<B: Backend> {
    permit: RemoteKeyPermit<B>,
    weight: u64,
}

impl<B: Backend> Gate for RemoteKey<B> {
    type Permit = RemoteKeyHeld<B>;

    async fn acquire(&self, wish: Wish) -> Result<Self::Permit, String> {
        let ask = Ask::one().cost(TOKENS, wish.tokens).cost(SLOTS, wish.weight);
        let acquired = if wish.at_once {
            self.acquire_now(ask).await
        } else {
            RemoteKey::acquire(self, ask).await
        };
        let permit = acquired.map_err(|refused| match refused.reason() {
            Reason::RateExceeded | Reason::Saturated => refused.leg().to_owned(),
            _ => refused.to_string(),
        })?;
        let weight = wish.weight;
        Ok(RemoteKeyHeld { permit, weight })
    }
}

impl<B: Backend> TenantGate for RemoteKey<B> {
    async fn usage(&self) -> Result<[u64; 4], String> {
        let usage = RemoteKey::usage(self).await.map_err(|error| error.to_string())?;
        let mut in_use = usage.legs().map(|leg| match leg.state {
            State::Permits { in_use, .. } => in_use,
            State::Rate { limit, available, .. } => limit - available,
            other => unreachable!("{other:?}"),
        });
        let permits = in_use.next().expect("the first leg");
        let mut units = [permits; 4];
        units.iter_mut().zip(in_use).for_each(|(units, in_use)| *units = in_use);
        Ok(units)
    }
}

impl<B: Backend> Held for RemoteKeyHeld<B> {
    fn weight(&self) -> u64 {
        self.weight
    }

    fn settle(&mut self, tokens: u64) {
        self.permit.settle(TOKENS, tokens).expect("a cost that counts");
    }

    fn token(&self) -> u64 {
        0
    }

    fn remaining(&self) -> Duration {
        self.permit.good_for().unwrap_or_default()
    }

    async fn lost(&mut self) {
        self.permit.lost().await;
    }
}
