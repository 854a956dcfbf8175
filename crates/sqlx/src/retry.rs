//! Trying a transaction of our own again after it lost a conflict. Never used in a transaction of the caller's.

use std::time::Duration;

use posthaste_core::{Error, ErrorKind};

const MAX_TRIES: u32 = 5;

/// Counts the tries of one call.
#[derive(Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// Whether to try again, after a moment's pause that grows and differs between callers.
    pub(crate) async fn again(&mut self, error: &Error) -> bool {
        self.0 += 1;
        if error.kind() != ErrorKind::Conflict || self.0 >= MAX_TRIES {
            return false;
        }
        let pause = Duration::from_millis(4 << self.0);
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OBX-099: a conflict is tried again, at most five times in all; nothing else is.
    #[tokio::test]
    async fn conflicts_only_and_five_times() {
        let conflict = Error::new(ErrorKind::Conflict, "");
        let mut tries = Tries::default();
        let mut made = 1;
        while tries.again(&conflict).await {
            made += 1;
        }
        assert_eq!(made, 5);
        assert!(!Tries::default().again(&Error::new(ErrorKind::Busy, "")).await);
    }
}
