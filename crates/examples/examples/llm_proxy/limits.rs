//! Every limit of the proxy. One admission takes all of them or nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate::policy::reload::ReloadableLegs;
use tollgate::policy::source::{FileSource, Look};
use tollgate::policy::spec::{PolicySpec, SemaphoreRule};
use tollgate::{Ask, BoxLimiter, CircuitBreaker, Clock, Cost, Keyed, LimiterExt, OpenTime, Order, Policy, Semaphore};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the providers bill.
pub(crate) const TOKENS: Cost = Cost::new("tokens");
/// Keys that are known at once.
const KEYS: usize = 100_000;
/// How long a request waits for a model, and how many of one key and model do.
const MAX_WAIT: Duration = Duration::from_secs(5);
const MAX_QUEUE: usize = 50;

/// The tiers, in the order in which they are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tier {
    Paid,
    Free,
}

/// Whose limits apply to a request, and a model that is known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caller {
    pub(crate) key: String,
    pub(crate) tier: Tier,
    pub(crate) model: String,
}

impl Caller {
    pub(crate) fn ask(&self, tokens: u64) -> Ask {
        Ask::one().cost(TOKENS, tokens).class(self.tier as u8)
    }
}

type OfKey = Keyed<(Tier, String), Policy<ReloadableLegs>>;

pub(crate) struct Limits {
    /// What the whole proxy has in flight. A drain lowers it to nothing.
    pub(crate) server: Arc<Semaphore>,
    pub(crate) breaker: Arc<CircuitBreaker>,
    pub(crate) models: BTreeMap<String, Arc<Semaphore>>,
    /// Requests and tokens per minute, and tokens per day: as the file of the tier says.
    pub(crate) keys: Arc<OfKey>,
    tiers: Arc<Mutex<BTreeMap<Tier, PolicySpec>>>,
    /// All of them, for each key and model.
    pub(crate) callers: Arc<Keyed<Caller, Policy<BoxLimiter>>>,
    files: Mutex<[(Option<Tier>, FileSource); 3]>,
}

impl Limits {
    /// Reads the files of a folder.
    pub(crate) fn open(folder: &Path, clock: &Clock) -> Result<Arc<Self>, Failure> {
        let open = |name| FileSource::<PolicySpec>::open(folder.join(name));
        let (free, paid, served) = (open("free.toml")?, open("paid.toml")?, open("models.toml")?);
        let server = Arc::new(Semaphore::builder(1_000).name("server").build()?);
        let breaker = CircuitBreaker::builder()
            .count_window(20)
            .minimum_calls(10)
            .failure_rate(0.5)
            .open_for(OpenTime::fixed(Duration::from_secs(10)))
            .probes(2)
            .clock(clock)
            .build()?;
        let breaker = Arc::new(breaker);
        let tiers = Arc::new(Mutex::new(BTreeMap::from([(Tier::Free, free.0), (Tier::Paid, paid.0)])));
        let keys = {
            let (tiers, clock) = (Arc::clone(&tiers), clock.clone());
            Arc::new(Keyed::new(KEYS, move |(tier, _): &(Tier, String)| {
                let spec = tiers.lock().unwrap_or_else(PoisonError::into_inner)[tier].clone();
                spec.build(&clock).expect("it was checked when it was read")
            }))
        };
        let order = Order::Priority {
            classes: 2,
            patience: 8,
        };
        let semaphore = |(name, limit): (String, usize)| -> Result<_, Failure> {
            let built = Semaphore::builder(limit)
                .name(name.as_str())
                .order(order.clone())
                .build()?;
            Ok((name, Arc::new(built)))
        };
        let models: BTreeMap<_, _> = permits(&served.0).map(semaphore).collect::<Result<_, _>>()?;
        let callers = {
            let (server, breaker) = (Arc::clone(&server), Arc::clone(&breaker));
            let (keys, models, clock) = (Arc::clone(&keys), models.clone(), clock.clone());
            Keyed::try_new(KEYS, move |caller: &Caller| {
                let key = keys.get(&(caller.tier, caller.key.clone()))?;
                let all = Policy::builder()
                    .limit(Arc::clone(&server))
                    .limit(Arc::clone(&breaker).named("upstream"))
                    .limit(key)
                    .limit(Arc::clone(&models[&caller.model]));
                let all = all.boxed().max_wait(MAX_WAIT).max_queue(MAX_QUEUE).clock(&clock);
                Ok(all.build().expect("each leg stands once, on one clock"))
            })
        };
        let sources = [(Some(Tier::Free), free.1), (Some(Tier::Paid), paid.1), (None, served.1)];
        Ok(Arc::new(Self {
            server,
            breaker,
            models,
            keys,
            tiers,
            callers: Arc::new(callers),
            files: Mutex::new(sources),
        }))
    }

    /// Looks at the files. A version is put in force at its second look, for live keys as well; one that is wrong leaves
    /// the last in force, and is reported.
    pub(crate) fn reload(&self) -> Result<(), Failure> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (tier, file) in files.iter_mut() {
            let Look::Version(spec) = file.look() else { continue };
            let spec = spec?;
            let Some(tier) = tier else {
                for (model, limit) in permits(&spec) {
                    self.models.get(&model).inspect(|model| model.set_limit(limit));
                }
                continue;
            };
            let mut tiers = self.tiers.lock().unwrap_or_else(PoisonError::into_inner);
            tiers.insert(*tier, spec.clone());
            drop(tiers);
            self.keys.for_each(|(of, _), policy| {
                if of == tier {
                    let _ = policy.apply(spec.clone());
                }
            });
        }
        Ok(())
    }
}

/// The semaphores of a file.
fn permits(spec: &PolicySpec) -> impl Iterator<Item = (String, usize)> {
    let legs = spec.legs.iter();
    legs.filter_map(|leg| Some((leg.name.clone(), leg.rule.get::<SemaphoreRule>()?.limit)))
}
