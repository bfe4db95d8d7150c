//! The policies of a service that run: named ones, and a policy for each key; and how another version of all comes in force.

use crate::kind::{Around, Kinds, LivePartitions};
use crate::live::{Reload, ReloadableLegs, ReloadablePolicy, apply_spec, build_policy};
use crate::spec::{ConfigError, KeyTier, KeyedSpec, PolicySetSpec, PolicySpec, named};
use arc_swap::{ArcSwap, ArcSwapOption};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tollgate::policy::Partitions;
use tollgate::{Clock, Keyed, KeysFull, Policy};

/// The policies of a service: named ones, and maps with a policy for each key. A handle: clones are the same set.
///
/// # Versions
/// [`apply`](Reload::apply) puts another version of all in force, policy by policy, each as [`Reload`] states it.
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
/// A version that is refused changes nothing: each policy and each tier is built once before. A policy whose leg of a kind of your own
/// cannot be built a second time keeps the version before, and `last_error` says why. A key that is first asked for while a
/// version is put in force gets the new version, or is changed to it.
///
/// ```
/// # use tollgate::{LimiterExt, ManualClock};
/// # use tollgate_config::{KeyTier, KeyedSpec, LegKind, LegSpec, PolicySetSpec, PolicySpec, Reload};
/// let requests = |quota: &str| PolicySpec::new([LegSpec::new("requests", LegKind::TokenBucket { quota: quota.parse().unwrap() })]);
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
/// spec.keyed.get_mut("tenant").unwrap().keys.insert("acme".into(), KeyTier::Named("paid".into()));
/// assert_eq!(set.apply(spec)?, 2);
/// assert!(acme.try_admit(1).is_err(), "what was spent is spent");
/// assert_eq!(acme.limiter().leg("requests").unwrap().capacity(), Some(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PolicySet(Arc<Running>);

/// A policy for each key, made when the key is first asked for.
pub type KeyedPolicies = Keyed<String, Policy<ReloadableLegs>>;

struct Running {
    latest: ArcSwap<Latest>,
    error: ArcSwapOption<ConfigError>,
}

/// The latest version, and what runs by it.
#[derive(Default)]
struct Latest {
    spec: Arc<PolicySetSpec>,
    version: u64,
    around: Around,
    policies: BTreeMap<String, ReloadablePolicy>,
    keyed: BTreeMap<String, LiveMap>,
    /// Partitions of this version and those before, which may come back.
    known: LivePartitions,
}

#[derive(Clone)]
struct LiveMap {
    map: Arc<KeyedPolicies>,
    /// In force for new keys.
    tiers: Arc<ArcSwap<Tiers>>,
}

/// The policy of each key. Keys of a tier share it.
struct Tiers {
    keys: BTreeMap<String, Arc<PolicySpec>>,
    default: Arc<PolicySpec>,
    around: Around,
}

impl Tiers {
    /// Of a specification that has been checked.
    fn new(spec: &KeyedSpec, around: &Around) -> Arc<Self> {
        let shared = |(name, policy): (&String, &PolicySpec)| (name.clone(), Arc::new(policy.clone()));
        let tiers: BTreeMap<_, _> = spec.tiers.iter().map(shared).collect();
        let key = |(key, tier): (&String, &KeyTier)| match tier {
            KeyTier::Own(policy) => (key.clone(), Arc::new(policy.clone())),
            KeyTier::Named(tier) => (key.clone(), Arc::clone(&tiers[tier])),
        };
        Arc::new(Self {
            keys: spec.keys.iter().map(key).collect(),
            default: Arc::clone(&tiers[&spec.default]),
            around: around.clone(),
        })
    }

    fn policy_of(&self, key: &str) -> &Arc<PolicySpec> {
        self.keys.get(key).unwrap_or(&self.default)
    }
}

impl LiveMap {
    fn new(spec: &KeyedSpec, around: &Around) -> Self {
        let tiers = Arc::new(ArcSwap::new(Tiers::new(spec, around)));
        let (for_new_keys, max_keys) = (Arc::clone(&tiers), spec.max_keys);
        let map = Arc::new(Keyed::try_new(max_keys, move |key: &String| {
            let tiers = for_new_keys.load_full();
            build_policy(tiers.policy_of(key), &tiers.around).map_err(|_| KeysFull { max_entries: max_keys })
        }));
        Self { map, tiers }
    }

    /// Puts other tiers in force: for new keys, and then for those that are there.
    fn apply(&self, name: &str, spec: &KeyedSpec, around: &Around, refuse: &dyn Fn(ConfigError)) {
        let to = Tiers::new(spec, around);
        self.tiers.store(Arc::clone(&to));
        let mut live = Vec::new();
        // A key that is made meanwhile by the tiers before is visited, or made again.
        self.map
            .for_each(|key, policy| live.push((key.clone(), Arc::clone(policy))));
        for (key, policy) in live {
            if let Err(error) = put_in_force(&policy, to.policy_of(&key), around) {
                refuse(error.below(["keys", &key]).below(["keyed", name]));
            }
        }
    }
}

/// Puts a policy of a set in force, unless it is: most have not changed.
fn put_in_force(policy: &ReloadablePolicy, spec: &Arc<PolicySpec>, around: &Around) -> Result<(), ConfigError> {
    match policy.limiter().is_in_force(spec, around) {
        true => Ok(()),
        false => apply_spec(policy, spec, around).map(drop),
    }
}

impl PolicySetSpec {
    /// Builds the policies, fresh, on `clock`. Those of keys are built when a key is first asked for.
    ///
    /// # Errors
    /// [`ConfigError`]: a mistake, with its path.
    pub fn build(&self, clock: &Clock) -> Result<PolicySet, ConfigError> {
        self.build_with(clock, &Kinds::new())
    }

    /// The same with legs of these kinds as well, also in later versions.
    ///
    /// # Errors
    /// As those of [`build`](Self::build).
    pub fn build_with(&self, clock: &Clock, kinds: &Kinds) -> Result<PolicySet, ConfigError> {
        let nothing = Latest {
            around: Around::new(clock, kinds),
            ..Latest::default()
        };
        Ok(PolicySet(Arc::new(Running {
            latest: ArcSwap::from_pointee(nothing.prepare(&Arc::new(self.clone()))?),
            error: ArcSwapOption::empty(),
        })))
    }
}

impl Latest {
    /// The version `spec` after this one, with all that is new in it built, and nothing changed.
    fn prepare(&self, spec: &Arc<PolicySetSpec>) -> Result<Self, ConfigError> {
        if spec.policies.is_empty() && spec.keyed.is_empty() {
            let fault = "none was given, and at least one `policy` or `keyed` is needed";
            return Err(ConfigError::new("policy", fault));
        }
        let mut next = Self {
            spec: Arc::clone(spec),
            version: self.version + 1,
            around: self.around.clone(),
            known: self.known.clone(),
            ..Self::default()
        };
        let mut partitions = LivePartitions::new();
        for (name, spec) in &spec.partitions {
            let live = spec.build().and_then(|fresh| match self.known.get(name) {
                Some((known, live)) => spec.check_next(known).map(|()| Arc::clone(live)),
                None => Ok(Arc::new(fresh)),
            });
            let live = live.map_err(|error| error.below(["partitions", name]))?;
            partitions.insert(name.clone(), (spec.clone(), live));
        }
        if spec.partitions != self.spec.partitions {
            next.known.extend(partitions.clone());
            next.around.partitions = Arc::new(partitions);
        }
        for (name, spec) in &spec.policies {
            let spec = Arc::new(spec.clone());
            let policy = match self.policies.get(name) {
                Some(known) => known.limiter().check(&spec, &next.around).map(|()| known.clone()),
                None => build_policy(&spec, &next.around),
            };
            let policy = policy.map_err(|error| error.below(["policy", name]))?;
            next.policies.insert(name.clone(), policy);
        }
        for (name, spec) in &spec.keyed {
            let before = self.spec.keyed.get(name);
            let checked = spec.check(before, &next.around);
            checked.map_err(|error| error.below(["keyed", name]))?;
            let live = self.keyed.get(name).cloned();
            next.keyed
                .insert(name.clone(), live.unwrap_or_else(|| LiveMap::new(spec, &next.around)));
        }
        Ok(next)
    }

    /// Changes all that this version says. A policy whose leg of a kind of the program's own cannot be built any more keeps the version
    /// before.
    fn put_in_force(&self, refuse: &dyn Fn(ConfigError)) {
        for (spec, live) in self.around.partitions.values() {
            // Numbers that have been checked are not refused; refused ones would leave the old in force.
            live.set_limit(spec.limit);
            let _ = live.set_parts(&spec.parts());
        }
        for (name, spec) in &self.spec.policies {
            if let Err(error) = put_in_force(&self.policies[name], &Arc::new(spec.clone()), &self.around) {
                refuse(error.below(["policy", name]));
            }
        }
        for (name, spec) in &self.spec.keyed {
            self.keyed[name].apply(name, spec, &self.around, refuse);
        }
    }
}

impl PolicySet {
    /// The latest version.
    pub fn spec(&self) -> Arc<PolicySetSpec> {
        Arc::clone(&self.0.latest.load().spec)
    }

    /// Its number: the set starts with 1.
    pub fn version(&self) -> u64 {
        self.0.latest.load().version
    }

    /// Why the latest version that was handed in is not in force; `None` when it is.
    pub fn last_error(&self) -> Option<ConfigError> {
        self.0.error.load().as_deref().cloned()
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// [`ConfigError`]: the version in force has none of that name.
    pub fn policy(&self, name: &str) -> Result<ReloadablePolicy, ConfigError> {
        named(&self.0.latest.load().policies, name, "policy").cloned()
    }

    /// The map called `name`, with a policy for each key.
    ///
    /// # Errors
    /// [`ConfigError`]: the version in force has none of that name.
    pub fn keyed(&self, name: &str) -> Result<Arc<KeyedPolicies>, ConfigError> {
        let latest = self.0.latest.load();
        let live = named(&latest.keyed, name, "map of keyed policies")?;
        Ok(Arc::clone(&live.map))
    }

    /// The partitions called `name`, which policies of the set share.
    ///
    /// # Errors
    /// [`ConfigError`]: the version in force has none of that name.
    pub fn partitions(&self, name: &str) -> Result<Arc<Partitions>, ConfigError> {
        let latest = self.0.latest.load();
        let (_, live) = named(&latest.around.partitions, name, "partitions")?;
        Ok(Arc::clone(live))
    }
}

/// Versions: see [Versions](PolicySet#versions). A version costs some microseconds for each live key.
impl Reload<PolicySetSpec> for PolicySet {
    /// No lock is held while a version is built: where two come at once, the later one is built anew after the earlier.
    fn apply(&self, spec: PolicySetSpec) -> Result<u64, ConfigError> {
        let spec = Arc::new(spec);
        let mut next = loop {
            let before = self.0.latest.load_full();
            let prepared = before.prepare(&spec);
            let next = prepared.inspect_err(|error| self.refuse(error.clone()))?;
            let next = Arc::new(next);
            if Arc::ptr_eq(&self.0.latest.compare_and_swap(&before, Arc::clone(&next)), &before) {
                break next;
            }
        };
        self.0.error.store(None);
        let number = next.version;
        loop {
            next.put_in_force(&|error| self.refuse(error));
            // Another version may have come meanwhile: the later one is put in force last.
            let latest = self.0.latest.load_full();
            if Arc::ptr_eq(&latest, &next) {
                return Ok(number);
            }
            next = latest;
        }
    }

    fn refuse(&self, error: ConfigError) {
        self.0.error.store(Some(Arc::new(error)));
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicySet(version {})", self.version())
    }
}
