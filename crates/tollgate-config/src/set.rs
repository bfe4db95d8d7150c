//! The policies of a service that run: named ones, and a policy for each key; and how another version of all comes in force.

use crate::kind::{Around, Kinds, LivePartitions};
use crate::live::{Changes, ReloadableLegs, ReloadablePolicy, apply_spec, build_policy, check_next};
use crate::source::{ReloadEvent, Source, SourceError};
use crate::spec::{KeyTier, KeyedSpec, PolicySetSpec, PolicySpec, STAYS, SpecError};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use tollgate::policy::Partitions;
use tollgate::{Clock, Keyed, KeysFull, Policy};

/// The policies of a service: named ones, and maps with a policy for each key. A handle: clones are the same set.
///
/// # Versions
/// [`apply`](Self::apply) puts another version of all in force, policy by policy, each as [`Reload`](crate::Reload) states it.
///
/// | what | effect |
/// |---|---|
/// | a named policy has other legs or numbers | it changes in place, behind all handles |
/// | a tier has other legs or numbers | so do the policies of the live keys of that tier |
/// | a key gets another tier | its policy becomes that of the tier: legs of the same name, kind and cost keep what was spent |
/// | partitions have another limit, or other parts | they change before the policies; permits that are held stay held |
/// | a name is gone | it is not found any more; existing handles go on with the version before |
/// | a name comes back | it is a fresh policy or map; partitions are those of before |
/// | the order of a queue, its eviction, `max_keys`, or the classes of partitions change | the version is refused |
///
/// A version that is refused changes nothing: each policy and each tier is built once before. A key that is first asked for while a
/// version is put in force gets the new version, or is changed to it.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock};
/// # use tollgate_config::{KeyedSpec, LegKind, LegSpec, PolicySetSpec, PolicySpec};
/// let requests = |quota: &str| PolicySpec::new([LegSpec::new("requests", LegKind::token_bucket(quota.parse().unwrap()))]);
/// let mut tenants = KeyedSpec::new(10_000, "free", requests("1/h burst 2"));
/// tenants.tiers.insert("paid".into(), requests("100/h burst 5"));
/// let mut spec = PolicySetSpec::default();
/// spec.keyed.insert("tenant".into(), tenants);
/// let set = spec.build(&ManualClock::new())?;
///
/// let acme = set.keyed("tenant")?.get("acme")?;
/// assert!(acme.try_admit(2).is_ok());
/// assert!(acme.try_admit(1).is_err());
///
/// spec.keyed.get_mut("tenant").unwrap().keys.insert("acme".into(), "paid".into());
/// let changes = set.apply(spec)?;
/// assert!(acme.try_admit(1).is_err(), "what was spent is spent");
/// assert_eq!(acme.limiter().leg("requests").unwrap().capacity(), Some(5));
/// assert_eq!(changes.to_string(), "version 2: `keyed.tenant.keys` added; 1 live key of `tenant` changed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PolicySet(Arc<Running>);

/// A policy for each key, made when the key is first asked for.
pub type KeyedPolicies = Keyed<String, Policy<ReloadableLegs>>;

struct Running {
    clock: Clock,
    kinds: Kinds,
    latest: Mutex<Arc<Latest>>,
    error: Mutex<Option<SourceError>>,
}

/// The latest version, and what runs by it.
#[derive(Clone, Default)]
struct Latest {
    spec: Arc<PolicySetSpec>,
    version: u64,
    policies: BTreeMap<String, ReloadablePolicy>,
    keyed: BTreeMap<String, LiveMap>,
    /// Also those that are gone, in case they come back.
    partitions: Arc<LivePartitions>,
}

#[derive(Clone)]
struct LiveMap {
    map: Arc<KeyedPolicies>,
    /// In force for new keys.
    tiers: Arc<Mutex<Arc<Tiers>>>,
}

/// The policy of each key.
struct Tiers {
    default: Arc<PolicySpec>,
    keys: HashMap<String, Arc<PolicySpec>>,
    partitions: Arc<LivePartitions>,
}

impl Tiers {
    /// Of a specification that has been checked.
    fn of(keyed: &KeyedSpec, partitions: &Arc<LivePartitions>) -> Self {
        let tiers = keyed
            .tiers
            .iter()
            .map(|(name, policy)| (name, Arc::new(policy.clone())));
        let tiers: BTreeMap<_, _> = tiers.collect();
        let policy = |tier: &KeyTier| match tier {
            KeyTier::Own(policy) => Arc::new(policy.clone()),
            KeyTier::Named(tier) => Arc::clone(&tiers[tier]),
        };
        Self {
            default: Arc::clone(&tiers[&keyed.default]),
            keys: keyed
                .keys
                .iter()
                .map(|(key, tier)| (key.clone(), policy(tier)))
                .collect(),
            partitions: Arc::clone(partitions),
        }
    }

    fn policy_of(&self, key: &str) -> &Arc<PolicySpec> {
        self.keys.get(key).unwrap_or(&self.default)
    }
}

impl LiveMap {
    fn new(keyed: &KeyedSpec, partitions: &Arc<LivePartitions>, clock: &Clock, kinds: &Kinds) -> Self {
        let tiers = Arc::new(Mutex::new(Arc::new(Tiers::of(keyed, partitions))));
        let (clock, kinds, for_new_keys) = (clock.clone(), kinds.clone(), Arc::clone(&tiers));
        let max_keys = keyed.max_keys;
        let map = Keyed::try_new(max_keys, move |key: &String| {
            let tiers = Arc::clone(&*for_new_keys.lock());
            let policy = build_policy(Arc::clone(tiers.policy_of(key)), &clock, &kinds, &tiers.partitions);
            policy.map_err(|_| KeysFull::new(max_keys))
        });
        let map = Arc::new(map);
        Self { map, tiers }
    }

    /// Puts other tiers in force: for new keys, and then for those that are there. Gives the number of keys that have changed.
    fn apply(&self, keyed: &KeyedSpec, partitions: &Arc<LivePartitions>) -> (usize, Vec<(String, SpecError)>) {
        let to = Arc::new(Tiers::of(keyed, partitions));
        let old = std::mem::replace(&mut *self.tiers.lock(), Arc::clone(&to));
        drop(old);
        let mut live = Vec::new();
        // A key that is made meanwhile by the tiers before is visited, or made again.
        self.map
            .for_each(|key, policy| live.push((key.clone(), Arc::clone(policy))));
        let (mut changed, mut refused) = (0, Vec::new());
        for (key, policy) in live {
            match apply_spec(&policy, to.policy_of(&key), Some(partitions)) {
                Ok(changes) => changed += usize::from(!changes.is_empty()),
                Err(error) => refused.push((key, error)),
            }
        }
        (changed, refused)
    }
}

impl PolicySetSpec {
    /// Builds the policies, fresh, on `clock`. Those of keys are built when a key is first asked for.
    ///
    /// # Errors
    /// [`SpecError`]: the first mistake, with its path.
    pub fn build(&self, clock: &Clock) -> Result<PolicySet, SpecError> {
        self.build_with(clock, &Kinds::new())
    }

    /// The same with legs of these kinds as well, also in later versions.
    ///
    /// # Errors
    /// As those of [`build`](Self::build).
    pub fn build_with(&self, clock: &Clock, kinds: &Kinds) -> Result<PolicySet, SpecError> {
        let running = Running {
            clock: clock.clone(),
            kinds: kinds.clone(),
            latest: Mutex::default(),
            error: Mutex::default(),
        };
        let next = running.prepare(&Latest::default(), Arc::new(self.clone()))?;
        *running.latest.lock() = Arc::new(next);
        Ok(PolicySet(Arc::new(running)))
    }
}

impl Running {
    fn latest(&self) -> Arc<Latest> {
        Arc::clone(&self.latest.lock())
    }

    /// The version `spec` after `before`, with all that is new in it built, and nothing changed.
    fn prepare(&self, before: &Latest, spec: Arc<PolicySetSpec>) -> Result<Latest, SpecError> {
        let (clock, kinds) = (&self.clock, &self.kinds);
        let fresh = spec.build_partitions()?;
        let mut all = LivePartitions::clone(&before.partitions);
        for (name, (partitions, built)) in fresh {
            if let Some((known, live)) = all.get(&name) {
                let next = partitions.check_next(known);
                next.map_err(|error| error.below(["partitions", &name]))?;
                let live = Arc::clone(live);
                all.insert(name, (partitions, live));
            } else {
                all.insert(name, (partitions, built));
            }
        }
        // Only those of this version are known to its legs.
        let there = all.iter().filter(|(name, _)| spec.partitions.contains_key(*name));
        let partitions: LivePartitions = there.map(|(name, live)| (name.clone(), live.clone())).collect();
        let partitions = Arc::new(partitions);
        spec.check_around(&Around {
            clock,
            kinds,
            partitions: &partitions,
        })?;
        let mut next = Latest {
            version: before.version + 1,
            partitions: Arc::new(all),
            ..Latest::default()
        };
        for (name, policy) in &spec.policies {
            let known = before.policies.get(name);
            let policy = match known {
                Some(known) => check_next(known, policy, &partitions).map(|()| known.clone()),
                None => build_policy(Arc::new(policy.clone()), clock, kinds, &partitions),
            };
            let policy = policy.map_err(|error| error.below(["policy", name]))?;
            next.policies.insert(name.clone(), policy);
        }
        for (name, keyed) in &spec.keyed {
            let live = match (before.keyed.get(name), before.spec.keyed.get(name)) {
                (Some(live), Some(known)) => {
                    check_map(keyed, known).map_err(|error| error.below(["keyed", name]))?;
                    live.clone()
                }
                _ => LiveMap::new(keyed, &partitions, clock, kinds),
            };
            next.keyed.insert(name.clone(), live);
        }
        next.spec = spec;
        Ok(next)
    }

    /// Changes all that the version `next` says.
    fn put_in_force(&self, next: &Latest, changes: &mut Changes) {
        let there = next
            .spec
            .partitions
            .iter()
            .filter_map(|(name, spec)| Some((name, (spec.clone(), Arc::clone(&next.partitions.get(name)?.1)))));
        let partitions: Arc<LivePartitions> = Arc::new(there.map(|(name, live)| (name.clone(), live)).collect());
        for (spec, live) in partitions.values() {
            // Numbers that have been checked are not refused; refused ones would leave the old in force.
            live.set_limit(spec.limit);
            let _ = live.set_parts(&spec.parts());
        }
        for (name, policy) in &next.spec.policies {
            if let Err(error) = apply_spec(&next.policies[name], &Arc::new(policy.clone()), Some(&partitions)) {
                changes.refused.push((format!("policy.{name}"), error));
            }
        }
        for (name, keyed) in &next.spec.keyed {
            let (changed, refused) = next.keyed[name].apply(keyed, &partitions);
            if changed > 0 {
                changes.live.push((name.clone(), changed));
            }
            let refused = refused
                .into_iter()
                .map(|(key, error)| (format!("keyed.{name}.keys.{key}"), error));
            changes.refused.extend(refused);
        }
    }
}

/// Refuses what stays as a map was built.
fn check_map(next: &KeyedSpec, before: &KeyedSpec) -> Result<(), SpecError> {
    if next.max_keys != before.max_keys {
        return Err(SpecError::new("max_keys", STAYS));
    }
    // All policies of a map have these settings in common.
    let Some(known) = before.tiers.get(&before.default) else {
        return Ok(());
    };
    let fixed = |(tables, policy): ([&str; 2], &PolicySpec)| {
        let fixed = policy.check_fixed(known, STAYS);
        fixed.map_err(|error| error.below(tables))
    };
    next.policies().try_for_each(fixed)
}

impl PolicySet {
    /// The latest version.
    pub fn spec(&self) -> Arc<PolicySetSpec> {
        Arc::clone(&self.0.latest().spec)
    }

    /// Its number: the set starts with 1.
    pub fn version(&self) -> u64 {
        self.0.latest().version
    }

    /// Why the latest version that was handed in is not in force; `None` when it is.
    pub fn last_error(&self) -> Option<SourceError> {
        self.0.error.lock().clone()
    }

    fn set_error(&self, error: Option<SourceError>) {
        let old = std::mem::replace(&mut *self.0.error.lock(), error);
        drop(old);
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// [`UnknownName`]: the version in force has none of that name.
    pub fn policy(&self, name: &str) -> Result<ReloadablePolicy, UnknownName> {
        let latest = self.0.latest();
        let policy = latest.policies.get(name).cloned();
        policy.ok_or_else(|| UnknownName::new("policy", name, latest.policies.keys()))
    }

    /// The map called `name`, with a policy for each key.
    ///
    /// # Errors
    /// [`UnknownName`]: the version in force has none of that name.
    pub fn keyed(&self, name: &str) -> Result<Arc<KeyedPolicies>, UnknownName> {
        let latest = self.0.latest();
        let map = latest.keyed.get(name).map(|live| Arc::clone(&live.map));
        map.ok_or_else(|| UnknownName::new("map of keyed policies", name, latest.keyed.keys()))
    }

    /// The partitions called `name`, which policies of the set share.
    ///
    /// # Errors
    /// [`UnknownName`]: the version in force has none of that name.
    pub fn partitions(&self, name: &str) -> Result<Arc<Partitions>, UnknownName> {
        let latest = self.0.latest();
        let there = latest.spec.partitions.contains_key(name);
        let live = latest
            .partitions
            .get(name)
            .filter(|_| there)
            .map(|(_, live)| Arc::clone(live));
        live.ok_or_else(|| UnknownName::new("partitions", name, latest.spec.partitions.keys()))
    }

    /// Puts another version in force: see [Versions](Self#versions). A version costs some microseconds for each live key.
    ///
    /// # Errors
    /// [`SpecError`], with the path of the key: nothing has been changed then. It also stands in [`last_error`](Self::last_error).
    pub fn apply(&self, spec: PolicySetSpec) -> Result<Changes, SpecError> {
        let spec = Arc::new(spec);
        let applied = loop {
            let before = self.0.latest();
            let next = match self.0.prepare(&before, Arc::clone(&spec)) {
                Ok(next) => Arc::new(next),
                Err(error) => break Err(error),
            };
            let installed = {
                let mut latest = self.0.latest.lock();
                let unchanged = Arc::ptr_eq(&latest, &before);
                if unchanged {
                    *latest = Arc::clone(&next);
                }
                unchanged
            };
            if installed {
                break Ok((before, next));
            }
        };
        self.set_error(applied.as_ref().err().map(|error| SourceError::new(error.clone())));
        let (before, mut next) = applied?;
        let mut changes = Changes::between(next.version, &*before.spec, &*next.spec);
        loop {
            self.0.put_in_force(&next, &mut changes);
            // Another version may have come meanwhile: the later one is put in force last.
            let latest = self.0.latest();
            if Arc::ptr_eq(&latest, &next) {
                return Ok(changes);
            }
            next = latest;
        }
    }

    /// Puts each version that `source` gives in force, until the source ends, and reports each to `event`. To be spawned, or run on a
    /// thread of its own.
    ///
    /// # Cancel safety
    /// Dropping the future stops between two versions.
    pub async fn follow<S: Source<PolicySetSpec>>(&self, mut source: S, mut event: impl FnMut(ReloadEvent) + Send) {
        while let Some(version) = source.next().await {
            event(
                match version.and_then(|spec| self.apply(spec).map_err(SourceError::new)) {
                    Ok(changes) => ReloadEvent::Applied(changes),
                    Err(error) => {
                        self.set_error(Some(error.clone()));
                        ReloadEvent::Refused(error)
                    }
                },
            );
        }
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let latest = self.0.latest();
        f.debug_struct("PolicySet")
            .field("version", &latest.version)
            .field("policies", &latest.spec.policies.keys())
            .field("keyed", &latest.spec.keyed.keys())
            .field("partitions", &latest.spec.partitions.keys())
            .finish_non_exhaustive()
    }
}

/// A [`PolicySet`] has no policy, no map, or no partitions, of this name.
///
/// ```
/// # use tollgate::ManualClock;
/// # use tollgate_config::{LegKind, LegSpec, PolicySetSpec, PolicySpec};
/// let mut spec = PolicySetSpec::default();
/// spec.policies.insert("global".into(), PolicySpec::new([LegSpec::new("in flight", LegKind::semaphore(2))]));
/// let set = spec.build(&ManualClock::new())?;
/// let error = set.policy("globl").unwrap_err();
/// assert_eq!(error.to_string(), "`globl` is no policy, and there are: global");
/// assert_eq!((error.given(), error.names().collect::<Vec<_>>()), ("globl", vec!["global"]));
/// # Ok::<(), tollgate_config::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownName {
    what: &'static str,
    given: Box<str>,
    names: Box<[Box<str>]>,
}

impl UnknownName {
    fn new<'a>(what: &'static str, given: &str, names: impl Iterator<Item = &'a String>) -> Self {
        Self {
            what,
            given: given.into(),
            names: names.map(|name| name.as_str().into()).collect(),
        }
    }

    /// The name.
    pub fn given(&self) -> &str {
        &self.given
    }

    /// The names that there are.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = match self.names.is_empty() {
            true => "none".into(),
            false => self.names.join(", "),
        };
        write!(f, "`{}` is no {}, and there are: {names}", self.given, self.what)
    }
}

impl std::error::Error for UnknownName {}
