//! One batch on its way: in windows, over the connection of all batches, or over one of its own.
//!
//! Two kinds of messages are kept apart, so that they harm no others. A message whose connection was lost may be the reason:
//! some messages make the server end the connection every time. A message that was not confirmed may never be: its queue is
//! stuck. Both are sent last, the first over a connection of their own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lapin::Channel;
use posthaste_core::{Batch, SinkError, Verdict};
use tokio::time::Instant;

use crate::link::Trouble;
use crate::sink::{RabbitSink, Session, blocked, chunks, regroup, verdict};
use crate::window::{self, Parcel};

/// How long confirms are waited for where they did not come the last time.
const STALLED_PATIENCE: Duration = Duration::from_secs(2);
/// The most time that is kept for the question whether the server lives.
const LONGEST_QUESTION: Duration = Duration::from_secs(1);
/// The verdict on a message that ends a connection on its own.
const CULPRIT: &str = "RabbitMQ ended the connection when it got this message alone; see its log for why";

/// Why a window is kept apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Apart {
    Not,
    /// Its messages were not confirmed the last time.
    Stalled,
    /// One of its messages may end the connection.
    Suspect,
}

struct Window<'a> {
    parcels: Vec<Parcel<'a>>,
    apart: Apart,
}

/// A connection, and the channel that windows are sent on.
struct Road {
    session: Arc<Session>,
    channel: Option<Channel>,
    is_own: bool,
}

pub(crate) struct Sending<'a> {
    sink: &'a RabbitSink,
    batch: &'a Batch<'a>,
    /// Until when confirms are waited for.
    confirm_by: Instant,
    parcels: Vec<(Apart, Parcel<'a>)>,
    verdicts: Vec<Option<Verdict>>,
    road: Option<Road>,
}

impl<'a> Sending<'a> {
    pub(crate) fn new(sink: &'a RabbitSink, batch: &'a Batch<'a>) -> Self {
        let left = batch.deadline().saturating_duration_since(Instant::now());
        let confirm_by = batch.deadline() - (left / 5).min(LONGEST_QUESTION);
        Self { sink, batch, confirm_by, parcels: Vec::new(), verdicts: vec![None; batch.len()], road: None }
    }

    pub(crate) fn judge(&mut self, index: usize, verdict: Verdict) {
        self.verdicts[index] = Some(verdict);
    }

    pub(crate) fn add(&mut self, parcel: Parcel<'a>) {
        let apart = if self.sink.suspects().contains(&self.batch[parcel.index].id) {
            Apart::Suspect
        } else if self.sink.stalled().contains(&parcel.route()) {
            Apart::Stalled
        } else {
            Apart::Not
        };
        self.parcels.push((apart, parcel));
    }

    /// Sends all of them in windows of at most this size. Messages without a verdict at the end get the error.
    pub(crate) async fn send(mut self, window: usize) -> Vec<Verdict> {
        let windows = self.windows(window);
        let mut error = SinkError::down("not sent");
        if !windows.is_empty()
            && let Err(why) = self.send_windows(windows).await
        {
            error = why;
        }
        self.verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(|| Err(error.clone()))).collect()
    }

    /// One exchange per window: if it is missing, the server closes the channel, and messages to others need not suffer.
    fn windows(&mut self, most: usize) -> VecDeque<Window<'a>> {
        let mut parcels = std::mem::take(&mut self.parcels);
        parcels.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.exchange.as_str().cmp(y.exchange.as_str())));
        let mut windows = VecDeque::new();
        for mut together in chunks(parcels, |(a, x), (b, y)| a == b && x.exchange == y.exchange) {
            while !together.is_empty() {
                let rest = together.split_off(most.min(together.len()));
                let now = std::mem::replace(&mut together, rest);
                let apart = now.first().map_or(Apart::Not, |(apart, _)| *apart);
                windows.push_back(Window {
                    parcels: now.into_iter().map(|(_, parcel)| parcel).collect(),
                    apart,
                });
            }
        }
        windows
    }

    /// Sends windows, one after the other, and writes down the verdicts.
    async fn send_windows(&mut self, mut windows: VecDeque<Window<'a>>) -> Result<(), SinkError> {
        while let Some(Window { parcels, apart }) = windows.pop_front() {
            let used = self.channel(apart == Apart::Suspect).await?;
            let until = match apart {
                Apart::Stalled => self.confirm_by.min(Instant::now() + STALLED_PATIENCE),
                Apart::Not | Apart::Suspect => self.confirm_by,
            };
            let (answers, trouble) = window::publish(&used, &parcels, until).await;
            let was_alone = parcels.len() == 1;
            let mut open = Vec::new();
            for (parcel, answer) in parcels.into_iter().zip(answers) {
                match verdict(&parcel, answer) {
                    Some(verdict) => self.settle(&parcel, apart, verdict),
                    None => open.push(parcel),
                }
            }
            let again = match trouble {
                None => {
                    self.keep(used);
                    Vec::new()
                }
                Some(Trouble::Channel(code, text)) => {
                    let (judged, again) = regroup(code, &text, open);
                    for (index, error) in judged {
                        self.sink.suspects().forget(&self.batch[index].id);
                        self.judge(index, Err(error));
                    }
                    again
                }
                Some(Trouble::Late) => {
                    self.unconfirmed(open, apart, !windows.is_empty()).await?;
                    Vec::new()
                }
                Some(Trouble::Lost(_)) if apart == Apart::Suspect => self.lost_apart(open, was_alone),
                Some(Trouble::Lost(text)) => return Err(self.lost(&open, &text).await),
            };
            again.into_iter().rev().for_each(|parcels| windows.push_front(Window { parcels, apart }));
        }
        self.leave_road();
        Ok(())
    }

    /// Records the server's result for a message: it did not end the connection.
    fn settle(&mut self, parcel: &Parcel<'_>, apart: Apart, verdict: Verdict) {
        match apart {
            Apart::Not => {}
            Apart::Stalled => self.sink.stalled().forget(&parcel.route()),
            Apart::Suspect => self.sink.suspects().forget(&self.batch[parcel.index].id),
        }
        self.judge(parcel.index, verdict);
    }

    /// A channel of the connection of all batches, or of one that only this batch uses.
    async fn channel(&mut self, is_own: bool) -> Result<Channel, SinkError> {
        let deadline = self.batch.deadline();
        if self.road.as_ref().is_none_or(|road| road.is_own != is_own) {
            self.leave_road();
            let opening = if is_own {
                self.sink.own_session(deadline).await
            } else {
                self.sink.session(deadline).await
            };
            self.road = Some(Road { session: opening?, channel: None, is_own });
        }
        let Some(road) = &mut self.road else { return Err(SinkError::down("not connected")) };
        match road.channel.take() {
            Some(channel) => Ok(channel),
            None => self.sink.channel(&road.session, deadline).await,
        }
    }

    /// Keeps a channel for the next window.
    fn keep(&mut self, channel: Channel) {
        if let Some(road) = &mut self.road {
            road.channel = Some(channel);
        }
    }

    /// Gives the channel to the next batch.
    fn leave_road(&mut self) {
        if let Some(Road { session, channel: Some(channel), is_own: false }) = self.road.take() {
            session.idle().push(channel);
        }
    }

    /// Judges messages whose confirms did not come: alone, if the server lives.
    async fn unconfirmed(
        &mut self,
        open: Vec<Parcel<'a>>,
        apart: Apart,
        has_more: bool,
    ) -> Result<(), SinkError> {
        let Some(road) = &self.road else { return Ok(()) };
        // Only a live server opens a channel; an idle channel would prove nothing.
        road.session.idle().clear();
        if let Some(reason) = road.session.link.blocked() {
            return Err(blocked(&reason));
        }
        let asked = road.session.link.channel(self.batch.deadline()).await;
        if asked.is_err() {
            return Err(SinkError::down("RabbitMQ did not confirm before the deadline"));
        }
        for parcel in open {
            if apart != Apart::Suspect {
                self.sink.stalled().add(parcel.route());
            }
            let (exchange, key) = parcel.route();
            let text = format!(
                "RabbitMQ did not confirm it in time: exchange `{exchange}`, routing key `{key}`; look at its queue"
            );
            self.judge(parcel.index, Err(SinkError::busy(text)));
        }
        if has_more && Instant::now() >= self.confirm_by {
            return Err(SinkError::busy(
                "not sent before the deadline, behind messages that were not confirmed",
            ));
        }
        Ok(())
    }

    /// Suspects the messages that were under way when the connection was lost: one of them may be the reason.
    async fn lost(&mut self, open: &[Parcel<'a>], text: &str) -> SinkError {
        open.iter().for_each(|parcel| self.sink.suspects().add(self.batch[parcel.index].id));
        if let Some(road) = self.road.take() {
            self.sink.forget(&road.session).await;
        }
        SinkError::down(format!("the connection to RabbitMQ was lost: {text}"))
    }

    /// Judges a message that ended a connection alone. Several are sent again in halves.
    fn lost_apart(&mut self, mut open: Vec<Parcel<'a>>, was_alone: bool) -> Vec<Vec<Parcel<'a>>> {
        self.road = None;
        if was_alone {
            open.iter().for_each(|alone| self.judge(alone.index, Err(SinkError::busy(CULPRIT))));
            return Vec::new();
        }
        let second = open.split_off(open.len() / 2);
        [open, second].into_iter().filter(|half| !half.is_empty()).collect()
    }
}
