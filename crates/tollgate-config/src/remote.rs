//! The keyed policies of a file as limits that machines share.

use crate::kind::{Around, LegKind};
use crate::spec::{ConfigError, KeyTier, KeyedSpec, LegSpec, PolicySpec};
use tollgate::Cost;
use tollgate::remote::{KeyedLimits, RemoteLeg};

impl KeyedSpec {
    /// The same limits for a store that several machines share: what [`Remote::keyed`](tollgate::remote::Remote::keyed) takes.
    ///
    /// A store counts token buckets, sliding windows and semaphores. It has no queue: put a key into a [`Policy`](tollgate::Policy) to
    /// wait.
    ///
    /// # Errors
    /// [`ConfigError`]: the path of the first setting that a store does not have.
    ///
    /// ```
    /// use tollgate::ManualClock;
    /// use tollgate::remote::{Key, Memory, Remote};
    /// use tollgate_config::{Format, PolicySetSpec, parse};
    ///
    /// let text = "[keyed.tenant]\nmax_keys = 1000\ndefault = 'free'\n\
    ///             [[keyed.tenant.tier.free.leg]]\nname = 'in flight'\nkind = 'semaphore'\nlimit = 1\n";
    /// let spec: PolicySetSpec = parse(text, Format::Toml)?;
    /// let limits = spec.keyed["tenant"].remote_limits()?;
    /// let clock = ManualClock::new();
    /// let tenants = Remote::keyed(Key::new("tenants")?, limits).on(&clock).in_place(Memory::new(&clock))?;
    /// clock.run(async {
    ///     let acme = tenants.get("acme").unwrap();
    ///     let held = acme.acquire_now(1).await.unwrap();
    ///     assert!(acme.acquire_now(1).await.is_err());
    ///     # drop(held);
    /// });
    ///
    /// let waits = text.replace("[[keyed.tenant.tier.free.leg]]", "[keyed.tenant.tier.free]\nmax_wait = '1s'\n[[keyed.tenant.tier.free.leg]]");
    /// let error = parse::<PolicySetSpec>(&waits, Format::Toml)?.keyed["tenant"].remote_limits().unwrap_err();
    /// assert_eq!(error.to_string(), "tier.free.max_wait: a store has no queue, and a policy around the key has its bounds");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remote_limits(&self) -> Result<KeyedLimits, ConfigError> {
        self.check(None, &Around::default())?;
        let mut limits = KeyedLimits::new(self.max_keys, self.default.as_str(), []);
        for (tier, policy) in &self.tiers {
            let legs = legs_of(policy).map_err(|error| error.within(tier).within("tier"))?;
            limits = limits.tier(tier.as_str(), legs);
        }
        for (key, tier) in &self.keys {
            limits = match tier {
                KeyTier::Named(tier) => limits.key(key.as_str(), tier.as_str()),
                KeyTier::Own(policy) => {
                    let legs = legs_of(policy).map_err(|error| error.below(["keys", key]))?;
                    limits.key_with(key.as_str(), legs)
                }
            };
        }
        Ok(limits)
    }
}

fn legs_of(policy: &PolicySpec) -> Result<Vec<RemoteLeg>, ConfigError> {
    const NO_QUEUE: &str = "a store has no queue, and a policy around the key has its bounds";
    for (key, is_set) in [
        ("max_wait", policy.max_wait.is_some()),
        ("max_queue", policy.max_queue.is_some()),
    ] {
        if is_set {
            return Err(ConfigError::new(key, NO_QUEUE));
        }
    }
    policy.check_fixed(&PolicySpec::default(), NO_QUEUE)?;
    let leg = |(row, leg): (usize, &LegSpec)| remote_leg(leg).map_err(|error| error.within_row("leg", row));
    policy.legs.iter().enumerate().map(leg).collect()
}

fn remote_leg(leg: &LegSpec) -> Result<RemoteLeg, ConfigError> {
    for (key, is_set) in [
        ("shadow", leg.shadow),
        ("at_once", leg.at_once),
        ("when", leg.when.is_some()),
    ] {
        if is_set {
            return Err(ConfigError::new(key, "a store does not have it"));
        }
    }
    let name = leg.name.as_str();
    let remote = match &leg.kind {
        LegKind::TokenBucket { quota } => RemoteLeg::rate(name, *quota),
        LegKind::SlidingWindow { limit, window, .. } => RemoteLeg::window(name, *limit, *window),
        LegKind::Semaphore { limit } => RemoteLeg::permits(name, *limit as u64),
        other => {
            let fault = format!(
                "`{}` was given, and a store counts token-bucket, sliding-window, semaphore",
                other.name()
            );
            return Err(ConfigError::new("kind", fault));
        }
    };
    Ok(match &leg.per {
        Some(cost) => remote.per(Cost::interned(cost)),
        None => remote,
    })
}
