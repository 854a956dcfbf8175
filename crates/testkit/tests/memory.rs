//! The suite on the store in memory: the first one that must pass it.

posthaste_testkit::store_suite!(posthaste_testkit::MemoryFixture);
