//! Every limit of the proxy. One admission takes all of them or nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tollgate::policy::Partitions;
use tollgate::{BoxLimiter, Clock, Cost, Keyed, LimiterExt, Policy, Semaphore};
use tollgate_config::{FileSource, KeyTier, KeyedPolicies, LegKind, PolicySet, PolicySetSpec, Reload};
use tollgate_resilience::{CircuitBreaker, OpenTime};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the providers bill.
pub(crate) const TOKENS: Cost = Cost::new("tokens");
/// Pairs of a key and a model that are known at once.
const CALLERS: usize = 100_000;
/// How long a request waits for a model, and how many of one key and model do.
const MAX_WAIT: Duration = Duration::from_secs(5);
const MAX_QUEUE: usize = 50;

/// The part of a model's slots that free keys may fill. The rest is for paid ones.
const FREE: f64 = 0.75;

/// Whose limits apply to a request: of a model that is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) key: String,
    pub(crate) model: String,
    pub(crate) is_paid: bool,
}

pub(crate) struct Limits {
    /// What the whole proxy has in flight. A drain lowers it to nothing.
    pub(crate) server: Arc<Semaphore>,
    pub(crate) breaker: Arc<CircuitBreaker>,
    /// By the named policies of the file: paid keys find a slot where free ones wait.
    pub(crate) models: BTreeMap<String, Arc<Partitions>>,
    /// Requests and tokens per minute, and tokens per day, of each key: by its tier in the file.
    pub(crate) keys: Arc<KeyedPolicies>,
    /// All of them, for each key and model.
    pub(crate) callers: Arc<Keyed<Caller, Policy<BoxLimiter>>>,
    set: PolicySet,
    /// In force, and where the next one comes from.
    spec: Mutex<Arc<PolicySetSpec>>,
    source: Mutex<FileSource<PolicySetSpec>>,
}

impl Limits {
    pub(crate) fn open(file: &Path, clock: &Clock) -> Result<Arc<Self>, Failure> {
        let (spec, source) = FileSource::<PolicySetSpec>::open(file)?;
        let set = spec.build(clock)?;
        let keys = set.keyed("key")?;
        let server = Arc::new(Semaphore::new(1_000));
        let breaker = CircuitBreaker::builder()
            .count_window(20)
            .minimum_calls(10)
            .failure_rate(0.5)
            .open_for(OpenTime::fixed(Duration::from_secs(10)))
            .probes(2)
            .on(clock)
            .build()?;
        let breaker = Arc::new(breaker);
        let mut models = BTreeMap::new();
        for (name, permits) in permits(&spec) {
            models.insert(name.clone(), Arc::new(Partitions::levels(permits, &[1.0, FREE])?));
        }
        let callers = {
            let (server, breaker) = (Arc::clone(&server), Arc::clone(&breaker));
            let (keys, models, clock) = (Arc::clone(&keys), models.clone(), clock.clone());
            Keyed::try_new(CALLERS, move |caller: &Caller| {
                let model = models[&caller.model].class(usize::from(!caller.is_paid));
                let all = Policy::builder()
                    .limit(Arc::clone(&server).named("server"))
                    .limit(Arc::clone(&breaker).named("upstream"))
                    .limit(keys.get(&caller.key)?)
                    .limit(Arc::clone(model).named(&caller.model));
                let all = all.boxed().max_wait(MAX_WAIT).max_queue(MAX_QUEUE).on(&clock);
                Ok(all.build().expect("each leg stands once, on one clock"))
            })
        };
        Ok(Arc::new(Self {
            server,
            breaker,
            models,
            keys,
            callers: Arc::new(callers),
            set,
            spec: Mutex::new(Arc::new(spec)),
            source: Mutex::new(source),
        }))
    }

    /// Is the key of the paid tier?
    pub(crate) fn is_paid(&self, key: &str) -> bool {
        let spec = Arc::clone(&lock(&self.spec));
        let tier = spec.keyed.get("key").and_then(|keyed| keyed.keys.get(key));
        matches!(tier, Some(KeyTier::Named(tier)) if tier == "paid")
    }

    /// Looks at the file. A version is put in force as a whole, for live keys as well; one that is wrong leaves the last in force. Returns a
    /// line of what has changed.
    pub(crate) fn reload(&self) -> Result<Option<u64>, Failure> {
        let look = lock(&self.source).look();
        let Some(spec) = look else { return Ok(None) };
        let spec = spec?;
        let version = self.set.apply(spec.clone())?;
        for (name, permits) in permits(&spec) {
            self.models.get(name).inspect(|model| model.set_limit(permits));
        }
        *lock(&self.spec) = Arc::new(spec);
        Ok(Some(version))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The models of a file, and how many requests each serves at once.
fn permits(spec: &PolicySetSpec) -> impl Iterator<Item = (&String, usize)> {
    spec.policies
        .iter()
        .filter_map(|(name, policy)| match &policy.legs.first()?.kind {
            LegKind::Semaphore { limit } => Some((name, *limit)),
            _ => None,
        })
}
