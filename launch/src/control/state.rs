//! What the threads of a rank know together: messages that came, the first failure, who has left.

use super::Settings;
use super::failure::{Cause, Failure, Place};
use super::link::{Link, Sign};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A whole message.
#[derive(Debug)]
pub struct Message {
    /// The kind of call that it belongs to.
    pub call: u8,
    /// The number of that call.
    pub number: u64,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// Shared by all threads of a rank.
#[derive(Debug)]
pub struct Shared {
    /// Its number.
    pub rank: u64,
    /// Those of the run.
    pub settings: Settings,
    /// To every other rank from rank 0, or to rank 0.
    pub links: Vec<Link>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    failure: Option<Failure>,
    place: Place,
    links: Vec<LinkState>,
    watchers: Vec<Watcher>,
    /// This rank says goodbye.
    leaves: bool,
    /// This rank is gone.
    closed: bool,
}

/// It hears of the first failure.
type Heard = Box<dyn FnOnce(&Failure) + Send>;
struct Watcher(Heard);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

#[derive(Debug, Default)]
struct LinkState {
    inbox: VecDeque<Message>,
    place: Place,
    /// It has ended well.
    left: bool,
    /// Nothing comes from it any more.
    ended: bool,
    /// It has been told the last that it is told.
    told: bool,
}

impl Shared {
    pub fn new(rank: u64, settings: Settings, links: Vec<Link>) -> Shared {
        let states = links.iter().map(|_| LinkState::default()).collect();
        let state =
            State { failure: None, place: Place::default(), links: states, watchers: vec![], leaves: false, closed: false };
        Shared { rank, settings, links, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, f: impl FnOnce(&mut State)) {
        f(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `f` gives something, for a time at most if one is given.
    fn wait<R>(&self, longest: Option<Duration>, mut f: impl FnMut(&mut State) -> Option<R>) -> Option<R> {
        let until = longest.map(|longest| Instant::now() + longest);
        let mut state = self.lock();
        loop {
            if let Some(found) = f(&mut state) {
                return Some(found);
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The first failure.
    pub fn failure(&self) -> Option<Failure> {
        self.lock().failure.clone()
    }

    /// Keeps `failure` if it is the first, and wakes all who wait.
    pub fn fail(&self, failure: Failure) {
        let mut watchers = vec![];
        self.change(|state| {
            if state.failure.is_none() && !state.closed {
                state.failure = Some(failure.clone());
                watchers = std::mem::take(&mut state.watchers);
            }
        });
        watchers.into_iter().for_each(|watcher| (watcher.0)(&failure));
    }

    /// `heard` hears of the first failure, at once if there was one.
    pub fn watch(&self, heard: Heard) {
        let failure = {
            let mut state = self.lock();
            match state.failure.clone() {
                Some(failure) => failure,
                None => return state.watchers.push(Watcher(heard)),
            }
        };
        heard(&failure);
    }

    /// The connection of link `index` has ended, or says nothing, or nonsense.
    pub fn lost(&self, index: usize, cause: Cause, message: String) {
        let (left, place) = {
            let state = self.lock();
            (state.links[index].left || state.closed, state.links[index].place.clone())
        };
        if !left {
            self.fail(Failure { rank: self.links[index].peer, cause, place, message });
        }
    }

    /// Nothing more comes over link `index`.
    pub fn ended(&self, index: usize) {
        self.change(|state| state.links[index].ended = true);
    }

    /// The last has been told over link `index`.
    pub fn signed(&self, index: usize) {
        self.change(|state| state.links[index].told = true);
    }

    pub fn said_goodbye(&self, index: usize) {
        self.change(|state| state.links[index].left = true);
    }

    pub fn is_at(&self, index: usize, place: Place) {
        self.lock().links[index].place = place;
    }

    pub fn received(&self, index: usize, message: Message) {
        self.change(|state| state.links[index].inbox.push_back(message));
    }

    /// What this rank does.
    pub fn set_place(&self, place: Place) {
        self.lock().place = place;
    }

    pub fn place(&self) -> Place {
        self.lock().place.clone()
    }

    /// The next message over link `index`, for a call named `call`.
    pub fn next(&self, index: usize, call: &str) -> Result<Message, Failure> {
        let found = self.wait(None, |state| {
            if let Some(failure) = &state.failure {
                return Some(Err(failure.clone()));
            }
            let message = state.links[index].inbox.pop_front().map(Ok);
            message.or_else(|| self.has_left(state, index, call).map(Err))
        });
        // There is no limit of time, so something was found.
        let found = found.unwrap_or_else(|| Err(self.own(String::new())));
        found.inspect_err(|failure| self.fail(failure.clone()))
    }

    /// The failure that the rank of link `index` has ended, and does not come to `call`.
    fn has_left(&self, state: &State, index: usize, call: &str) -> Option<Failure> {
        let link = &state.links[index];
        let message = format!(" in `{call}`");
        let left = || Failure { rank: self.links[index].peer, cause: Cause::Left, place: link.place.clone(), message };
        link.left.then(left)
    }

    /// A failure of this rank, where it is.
    pub fn own(&self, message: String) -> Failure {
        Failure { rank: self.rank, cause: Cause::Reported, place: self.place(), message }
    }

    /// The failure of a link that could not be written to in `call`; whoever reads from it knows it
    /// soon.
    pub fn failure_of(&self, index: usize, call: &str) -> Failure {
        let known =
            self.wait(Some(self.settings.silence), |state| state.failure.clone().or_else(|| self.has_left(state, index, call)));
        let failure = known.unwrap_or_else(|| {
            let place = self.lock().links[index].place.clone();
            Failure { rank: self.links[index].peer, cause: Cause::Died, place, message: String::new() }
        });
        self.fail(failure.clone());
        failure
    }

    /// Waits for the next sign to be given.
    pub fn next_sign(&self) -> Sign {
        let sign = self.wait(Some(self.settings.beat()), |state| match &state.failure {
            // The rank that failed hears of it too: it may only have been slow.
            Some(failure) => Some(Sign::Failed(failure.clone())),
            None if state.leaves => Some(Sign::Goodbye),
            None if state.closed => Some(Sign::Nothing),
            None => None,
        });
        sign.unwrap_or_else(|| Sign::Alive(self.place()))
    }

    /// Waits until all that can hear of the failure have been told.
    pub fn all_told(&self, longest: Duration) {
        self.wait(Some(longest), |state| state.links.iter().all(|link| link.told || link.ended).then_some(()));
    }

    /// Says goodbye, and waits until the others have done so too or are gone.
    pub fn leave(&self, longest: Duration) {
        self.change(|state| state.leaves = true);
        self.wait(Some(longest), |state| state.links.iter().all(|link| link.told && link.ended).then_some(()));
    }

    /// Nothing is told or heard any more.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    pub fn has_closed(&self) -> bool {
        self.lock().closed
    }

    pub fn has_ended(&self) -> bool {
        let state = self.lock();
        state.failure.is_some() || state.leaves || state.closed
    }

    /// Whether there was a failure, or this rank is gone.
    pub fn is_over(&self) -> bool {
        let state = self.lock();
        state.failure.is_some() || state.closed
    }
}
