//! The policies of a service that run: named ones, and a policy for each key; and how another version of all comes in force.

use super::Policy;
use super::kind::LivePartitions;
use super::reload::{Applied, Changes, ReloadableLegs, Scrap};
use super::spec::{KeyTier, KeyedSpec, PolicySetSpec, PolicySpec, SpecError};
use crate::keyed::{Keyed, KeysFull};
use crate::sync::notify::{self, Notified};
use crate::sync::shim::Mutex;
use crate::sync::wake::PanicCollector;
use crate::time::Clock;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

/// The policies of a service: named ones, and maps with a policy for each key. A handle: clones are the same set.
///
/// Built from a [`PolicySetSpec`], which may come from a file.
///
/// # Versions
/// [`apply`](Self::apply) puts another version of all in force, policy by policy. Each policy changes as a whole, and keeps its state,
/// as [`policy::reload`](super::reload) states it:
///
/// | what | effect |
/// |---|---|
/// | a named policy has other legs or numbers | it changes in place, behind all handles |
/// | a tier has other legs or numbers | so do the policies of the live keys of that tier |
/// | a key gets another tier | its policy becomes that of the tier: legs of the same name, kind and cost keep what was spent |
/// | [partitions](super::spec::PartitionsSpec) have another limit, or other parts | they change in one step, before the policies; permits that are held stay held |
/// | a name is gone | it is not found any more; existing handles go on with the version before |
/// | a name comes back | it goes on from the state that it had, and that time has passed over; with another order, eviction, bound in units or `max_keys` it is a fresh policy or map |
/// | the order of a queue, its eviction, its bound in units, `max_keys`, or the classes of partitions change | the version is refused |
///
/// A version that is refused changes nothing. It is tried before: each policy and each tier is built once. Only a
/// [`Rule`](super::spec::Rule) of your own whose `build` gives a fault one time and none the next is found later:
/// [`SetChanges::refused`].
///
/// A key that is first asked for while a version is put in force gets the new version, or is changed to it. Not changed are policies that
/// were taken out of a map by [`Keyed::remove`], and those of the overflow.
///
/// # Memory
/// A policy or map whose name is gone is kept, in case it comes back. A live key of a map takes about 4 KB with a token bucket and a
/// semaphore (measured over 100,000), and what [`Keyed`] states.
///
/// ```
/// # use tollgate::policy::spec::{KeyedSpec, LegRule, LegSpec, PolicySetSpec, PolicySpec};
/// # use tollgate::{LimiterExt, ManualClock};
/// let requests = |quota: &str| PolicySpec::new([LegSpec::new("requests", LegRule::token_bucket(quota.parse().unwrap()))]);
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
/// let version = set.apply(spec)?;
/// assert!(acme.try_admit(1).is_err(), "what was spent is spent");
/// assert_eq!(acme.limiter().leg("requests").unwrap().capacity, Some(5));
/// # let tollgate::policy::reload::Applied::Now(version) = version else { unreachable!() };
/// assert_eq!(version.to_string(), "version 2: `keyed.tenant` `acme` tier free -> paid; 1 live key of `tenant` changed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PolicySet(Arc<SetCore>);

/// A policy for each key, made when the key is first asked for.
///
/// A key whose policy cannot be built is refused as one without room: that takes a [`Rule`](super::spec::Rule) of your own, whose `build`
/// has worked before. A policy with a limiter that the program holds as well is never evicted: have the rule's limiter be a
/// [`keyed::Shared`](crate::keyed::Shared), and not an [`Arc`].
pub type KeyedPolicies = Keyed<String, Policy<ReloadableLegs>>;

struct SetCore {
    clock: Clock,
    /// The turn to put a version in force.
    turn: Mutex<()>,
    in_force: Mutex<Arc<InForce>>,
}

/// The latest version, and all that there ever was by a name.
#[derive(Clone, Default)]
struct InForce {
    spec: Arc<PolicySetSpec>,
    version: u64,
    policies: BTreeMap<String, Policy<ReloadableLegs>>,
    keyed: BTreeMap<String, KeyedEntry>,
    partitions: LivePartitions,
}

#[derive(Clone)]
struct KeyedEntry {
    map: Arc<KeyedPolicies>,
    max_keys: usize,
    /// In force for new keys.
    tiers: Arc<Mutex<Arc<Tiers>>>,
}

/// The policy of each key.
struct Tiers {
    default: Arc<PolicySpec>,
    keys: HashMap<String, Arc<PolicySpec>>,
}

impl Tiers {
    /// Of a specification that has been checked.
    fn of(keyed: &KeyedSpec) -> Self {
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
            keys: (keyed.keys.iter().map(|(key, tier)| (key.clone(), policy(tier)))).collect(),
        }
    }

    fn policy_of(&self, key: &str) -> &Arc<PolicySpec> {
        self.keys.get(key).unwrap_or(&self.default)
    }
}

impl KeyedEntry {
    fn new(keyed: &KeyedSpec, clock: &Clock) -> Self {
        let (max_keys, clock) = (keyed.max_keys, clock.clone());
        let tiers = Arc::new(Mutex::new(Arc::new(Tiers::of(keyed))));
        let in_force = Arc::clone(&tiers);
        let map = Keyed::try_new(max_keys, move |key: &String| {
            let tiers = Arc::clone(&*in_force.lock());
            PolicySpec::build_shared(tiers.policy_of(key), &clock).map_err(|_| KeysFull::of(max_keys))
        });
        Self {
            map: Arc::new(map),
            max_keys,
            tiers,
        }
    }
}

impl KeyedEntry {
    /// Refuses what stays as the map was built.
    fn check_next(&self, name: &str, next: &KeyedSpec) -> Result<(), SpecError> {
        let tiers = Arc::clone(&*self.tiers.lock());
        next.check_next(name, self.max_keys, &tiers.default)
    }
}

impl PolicySetSpec {
    /// Builds the policies, fresh, on `clock`. Those of keys are built when a key is first asked for.
    ///
    /// # Errors
    /// [`SpecError`]: the first mistake, with the policy, the leg and the key.
    pub fn build(&self, clock: &Clock) -> Result<PolicySet, SpecError> {
        let core = SetCore {
            clock: clock.clone(),
            turn: Mutex::new(()),
            in_force: Mutex::default(),
        };
        let mut spec = self.clone();
        let partitions = core.try_out(&mut spec)?;
        core.put_in_force(spec, partitions)?;
        Ok(PolicySet(Arc::new(core)))
    }
}

impl PolicySet {
    fn in_force(&self) -> Arc<InForce> {
        Arc::clone(&*self.0.in_force.lock())
    }

    /// The latest version.
    pub fn spec(&self) -> PolicySetSpec {
        PolicySetSpec::clone(&self.in_force().spec)
    }

    /// Its number: the set starts with 1.
    pub fn version(&self) -> u64 {
        self.in_force().version
    }

    /// The policy called `name`.
    ///
    /// # Errors
    /// [`UnknownPolicy`]: the version in force has none of that name.
    pub fn policy(&self, name: &str) -> Result<Policy<ReloadableLegs>, UnknownPolicy> {
        let now = self.in_force();
        let known = &now.spec.policies;
        match now.policies.get(name).filter(|_| known.contains_key(name)) {
            Some(policy) => Ok(policy.clone()),
            None => Err(UnknownPolicy::new("policy", name, known.keys())),
        }
    }

    /// The map called `name`, with a policy for each key.
    ///
    /// # Errors
    /// [`UnknownPolicy`]: the version in force has none of that name.
    pub fn keyed(&self, name: &str) -> Result<Arc<KeyedPolicies>, UnknownPolicy> {
        let now = self.in_force();
        let known = &now.spec.keyed;
        match now.keyed.get(name).filter(|_| known.contains_key(name)) {
            Some(keyed) => Ok(Arc::clone(&keyed.map)),
            None => Err(UnknownPolicy::new("map of keyed policies", name, known.keys())),
        }
    }

    /// Puts another version in force: see [Versions](Self#versions). Versions come in turn, each as a whole. The waiters of all policies
    /// are judged by the new rules once all are in force. A version costs some microseconds for each live key. Until it is in force no key gives
    /// way to another, so a full map refuses new ones.
    ///
    /// # Errors
    /// [`SpecError`], with the policy, the leg and the key: nothing has been changed then.
    pub fn apply(&self, mut spec: PolicySetSpec) -> Result<Applied<SetChanges>, SpecError> {
        let partitions = self.0.try_out(&mut spec)?;
        if notify::is_deferred() {
            self.in_force().check_next(&spec)?;
            for (name, policy) in &spec.policies {
                let built = policy.build(&self.0.clock).map(drop);
                built.map_err(|error| error.within(&["policy", name]))?;
            }
            notify::call(Arc::new(Later(self.clone(), spec)));
            return Ok(Applied::Next);
        }
        self.0.put_in_force(spec, partitions).map(Applied::Now)
    }
}

/// A version that is put in force after the change that runs on this thread.
struct Later(PolicySet, PolicySetSpec);

impl Notified for Later {
    fn notified(self: Arc<Self>) {
        // It was checked and built when it was handed in. A rule of a user that is refused now leaves the version before.
        let _ = self.0.apply(self.1.clone());
    }
}

impl SetCore {
    /// Checks a version, and builds its partitions, and one policy of each tier, to try: those of keys are built later.
    fn try_out(&self, spec: &mut PolicySetSpec) -> Result<LivePartitions, SpecError> {
        spec.check()?;
        let mut fresh = LivePartitions::new();
        for (name, partitions) in &spec.partitions {
            let built = partitions
                .build()
                .map_err(|error| error.within(&["partitions", name]))?;
            fresh.insert(name.clone(), (partitions.clone(), Arc::new(built)));
        }
        spec.bind(&fresh);
        for (name, keyed) in &spec.keyed {
            for (tables, policy) in keyed.policies(name) {
                policy.build(&self.clock).map_err(|error| error.within(&tables))?;
            }
        }
        Ok(fresh)
    }

    /// Puts a version in force that has been tried out, with its partitions as far as they are new.
    fn put_in_force(&self, spec: PolicySetSpec, fresh: LivePartitions) -> Result<SetChanges, SpecError> {
        // What may run foreign code when it is dropped outlives the turn.
        let mut scrap = Scrap::new();
        let (mut spec, mut fresh) = (spec, fresh);
        let mut next = InForce::default();
        let mut panics = PanicCollector::default();
        let changes = notify::defer(|| {
            // Handles of the keys that are visited. They go after the turn and before the wake-ups, which may need the room.
            let mut visited = Vec::new();
            let _turn = self.turn.lock();
            let before = Arc::clone(&*self.in_force.lock());
            next = InForce::clone(&before);
            scrap.push(Box::new(Arc::clone(&before)));
            next.prepare(&mut spec, &mut fresh, &self.clock, &mut scrap)?;
            // From here on nothing is refused.
            let mut changes = SetChanges::between(next.version, &before.spec, &next.spec);
            for (name, partitions) in &next.spec.partitions {
                panics.run(|| partitions.put_in_force(&next.partitions[name].1));
            }
            for (name, policy) in &next.spec.policies {
                let place = || format!("policy.{name}");
                changes.reload(&next.policies[name], &Arc::new(policy.clone()), place, &mut panics);
            }
            for (name, keyed) in &next.spec.keyed {
                if !before.keyed.contains_key(name) {
                    continue;
                }
                let KeyedEntry { map, tiers, .. } = &next.keyed[name];
                let to = Arc::new(Tiers::of(keyed));
                // First for new keys, then for those that are there. A key that is made meanwhile by the tiers before is visited, or
                // made again: see `Keyed::for_each`.
                scrap.push(Box::new(std::mem::replace(&mut *tiers.lock(), Arc::clone(&to))));
                let mut live = Vec::new();
                map.for_each(|key, policy| live.push((key.clone(), Arc::clone(policy))));
                let mut changed = 0;
                for (key, policy) in &live {
                    let place = || format!("keyed.{name}.keys.{key}");
                    changed += usize::from(changes.reload(policy, to.policy_of(key), place, &mut panics));
                }
                if changed > 0 {
                    changes.live.push((name.clone(), changed));
                }
                visited.push(live);
            }
            *self.in_force.lock() = Arc::new(next.clone());
            Ok(changes)
        });
        panics.end();
        changes
    }
}

impl InForce {
    /// Refuses what stays as it was built.
    fn check_next(&self, spec: &PolicySetSpec) -> Result<(), SpecError> {
        for (name, partitions) in &spec.partitions {
            if let Some((known, _)) = self.partitions.get(name) {
                let next = partitions.check_next(known);
                next.map_err(|error| error.within(&["partitions", name]))?;
            }
        }
        for (name, policy) in &spec.policies {
            if let Some(known) = self
                .policies
                .get(name)
                .filter(|_| self.spec.policies.contains_key(name))
            {
                let next = policy.check_next(&known.limiter().shared_spec());
                next.map_err(|error| error.within(&["policy", name]))?;
            }
        }
        for (name, keyed) in &spec.keyed {
            if let Some(known) = self.keyed.get(name).filter(|_| self.spec.keyed.contains_key(name)) {
                known.check_next(name, keyed)?;
            }
        }
        Ok(())
    }

    /// Becomes the next version, of which nothing is in force yet.
    fn prepare(
        &mut self,
        spec: &mut PolicySetSpec,
        fresh: &mut LivePartitions,
        clock: &Clock,
        scrap: &mut Scrap,
    ) -> Result<(), SpecError> {
        self.check_next(spec)?;
        for (name, (partitions, live)) in std::mem::take(fresh) {
            self.partitions.entry(name).or_insert((partitions, live));
        }
        spec.bind(&self.partitions);
        for (name, policy) in &spec.policies {
            // What is left after the check is gone: it is another policy when it comes back with another queue.
            let known = self.policies.get(name);
            let known = known.filter(|known| policy.check_next(&known.limiter().shared_spec()).is_ok());
            let prepared = match known {
                Some(known) => known.limiter().prepare(policy, scrap),
                None => policy
                    .build(clock)
                    .map(|built| drop(self.policies.insert(name.clone(), built))),
            };
            prepared.map_err(|error| error.within(&["policy", name]))?;
        }
        for (name, keyed) in &spec.keyed {
            let known = self.keyed.get(name);
            if known.is_none_or(|known| known.check_next(name, keyed).is_err()) {
                self.keyed.insert(name.clone(), KeyedEntry::new(keyed, clock));
            }
        }
        self.spec = Arc::new(std::mem::take(spec));
        self.version += 1;
        Ok(())
    }
}

impl fmt::Debug for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = self.in_force();
        f.debug_struct("PolicySet")
            .field("version", &now.version)
            .field("policies", &now.spec.policies.keys())
            .field("keyed", &now.spec.keyed.keys())
            .field("partitions", &now.spec.partitions.keys())
            .finish_non_exhaustive()
    }
}

/// A [`PolicySet`] has no policy, or no map, of this name.
///
/// ```
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySetSpec, PolicySpec};
/// # use tollgate::ManualClock;
/// let mut spec = PolicySetSpec::default();
/// spec.policies.insert("global".into(), PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(2))]));
/// let set = spec.build(&ManualClock::new())?;
/// let error = set.policy("globl").unwrap_err();
/// assert_eq!(error.to_string(), "`globl` is no policy, and there are: global");
/// assert_eq!((error.given(), error.names().collect::<Vec<_>>()), ("globl", vec!["global"]));
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    what: &'static str,
    given: Box<str>,
    names: Box<[Box<str>]>,
}

impl UnknownPolicy {
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

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = if self.names.is_empty() {
            "none".into()
        } else {
            self.names.join(", ")
        };
        write!(f, "`{}` is no {}, and there are: {names}", self.given, self.what)
    }
}

impl std::error::Error for UnknownPolicy {}

/// The changes of a version of a [`PolicySet`]. Printed as one line.
///
/// A policy is named by its place in a file, such as `policy.global` or `keyed.tenant.tier.free`.
///
/// ```
/// # use tollgate::policy::reload::Applied;
/// # use tollgate::policy::spec::{LegRule, LegSpec, PolicySetSpec, PolicySpec};
/// # use tollgate::ManualClock;
/// let in_flight = |limit| PolicySpec::new([LegSpec::new("in flight", LegRule::semaphore(limit))]);
/// let mut spec = PolicySetSpec::default();
/// spec.policies.insert("global".into(), in_flight(2));
/// let set = spec.build(&ManualClock::new())?;
/// spec.policies.insert("global".into(), in_flight(3));
/// spec.policies.insert("batch".into(), in_flight(1));
/// let Applied::Now(changes) = set.apply(spec)? else { unreachable!() };
/// assert_eq!(changes.added, ["policy.batch"]);
/// assert_eq!(changes.to_string(), "version 2: `policy.batch` added; `policy.global` `in flight` rule 2 -> 3");
/// # Ok::<(), tollgate::policy::spec::SpecError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Default)]
#[non_exhaustive]
pub struct SetChanges {
    /// The number of the version: the set starts with 1.
    pub version: u64,
    /// Policies, tiers, keys with a policy of their own, and partitions, that were added.
    pub added: Vec<String>,
    /// Those that were removed.
    pub removed: Vec<String>,
    /// Those that changed, with their changes. Those of a map are its default tier, and the tiers of keys in place of legs. Those of
    /// partitions are their limit and their parts.
    pub changed: Vec<(String, Changes)>,
    /// How many live keys of each map were changed, where there are any.
    pub live: Vec<(String, usize)>,
    /// The policies that kept the version before, since a leg of a kind of your own could not be built. It could before.
    pub refused: Vec<(String, SpecError)>,
}

/// The policies of a set, by their places in a file.
fn places(spec: &PolicySetSpec) -> BTreeMap<String, &PolicySpec> {
    let named = spec
        .policies
        .iter()
        .map(|(name, policy)| (format!("policy.{name}"), policy));
    let keyed = spec.keyed.iter().flat_map(|(name, keyed)| keyed.policies(name));
    named
        .chain(keyed.map(|(tables, policy)| (tables.join("."), policy)))
        .collect()
}

/// Those places, and those of the partitions.
fn names(spec: &PolicySetSpec, places: &BTreeMap<String, &PolicySpec>) -> BTreeSet<String> {
    let partitions = spec.partitions.keys().map(|name| format!("partitions.{name}"));
    places.keys().cloned().chain(partitions).collect()
}

impl SetChanges {
    /// True when nothing has changed.
    pub fn is_empty(&self) -> bool {
        let named = [&self.added, &self.removed].into_iter().all(Vec::is_empty);
        named && self.changed.is_empty() && self.live.is_empty() && self.refused.is_empty()
    }

    fn between(version: u64, old: &PolicySetSpec, new: &PolicySetSpec) -> Self {
        let (before, after) = (places(old), places(new));
        let (names_before, names) = (names(old, &before), names(new, &after));
        let mut changes = Self {
            version,
            added: names.difference(&names_before).cloned().collect(),
            removed: names_before.difference(&names).cloned().collect(),
            ..Self::default()
        };
        for (name, to) in after {
            if let Some(from) = before.get(&name) {
                changes.note(name, Changes::between(version, from, to));
            }
        }
        for (name, to) in &new.partitions {
            if let Some(from) = old.partitions.get(name) {
                let mut numbers = Changes::default();
                numbers.note("", "limit", from.limit.to_string(), to.limit.to_string());
                numbers.note("", to.sharing.key(), from.sharing.text(), to.sharing.text());
                changes.note(format!("partitions.{name}"), numbers);
            }
        }
        for (name, to) in &new.keyed {
            if let Some(from) = old.keyed.get(name) {
                let mut tiers = Changes::default();
                let keys: BTreeSet<_> = from.keys.keys().chain(to.keys.keys()).collect();
                let keys = keys
                    .into_iter()
                    .map(|key| (key.as_str(), "tier", tier_of(from, key), tier_of(to, key)));
                let default = ("", "default", from.default.as_str(), to.default.as_str());
                for (key, setting, from, to) in std::iter::once(default).chain(keys) {
                    tiers.note(key, setting, from.into(), to.into());
                }
                changes.note(format!("keyed.{name}"), tiers);
            }
        }
        changes
    }

    /// Puts `to` in force at a policy, unless it is already. True when it was not.
    fn reload(
        &mut self,
        policy: &Policy<ReloadableLegs>,
        to: &Arc<PolicySpec>,
        place: impl Fn() -> String,
        panics: &mut PanicCollector,
    ) -> bool {
        let mut applied = Ok(false);
        panics.run(|| {
            if !policy.limiter().belongs_to(to) {
                applied = policy.limiter().apply(Arc::clone(to), false).map(|_| true);
            }
        });
        match applied {
            Ok(changed) => changed,
            Err(error) => {
                self.refused.push((place(), error));
                false
            }
        }
    }

    fn note(&mut self, name: String, changes: Changes) {
        if !changes.is_empty() {
            self.changed.push((name, changes));
        }
    }
}

/// The name of the tier of `key`.
fn tier_of<'a>(keyed: &'a KeyedSpec, key: &str) -> &'a str {
    match keyed.keys.get(key) {
        None => &keyed.default,
        Some(KeyTier::Named(tier)) => tier,
        Some(KeyTier::Own(_)) => "of its own",
    }
}

impl fmt::Display for SetChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}: ", self.version)?;
        if self.is_empty() {
            return f.write_str("nothing has changed");
        }
        let mut parts: Vec<String> = self.added.iter().map(|name| format!("`{name}` added")).collect();
        parts.extend(self.removed.iter().map(|name| format!("`{name}` removed")));
        for (name, changes) in &self.changed {
            parts.extend(changes.parts().map(|part| format!("`{name}` {part}")));
        }
        for (name, keys) in &self.live {
            let s = if *keys == 1 { "" } else { "s" };
            parts.push(format!("{keys} live key{s} of `{name}` changed"));
        }
        for (name, error) in &self.refused {
            parts.push(format!("`{name}` keeps the version before: {error}"));
        }
        f.write_str(&parts.join("; "))
    }
}
