// Keeps a view current: asks again every few seconds while it is seen, so that another admin's change appears by itself.

/** Call `refresh` now and then; returns a function that stops. `refresh` throws when it could not. */
export function live(refresh, { everyMs = 2000, onState = () => {} } = {}) {
  let stopped = false;
  let timer = 0;
  let busy = false;

  async function turn() {
    clearTimeout(timer);
    if (stopped || busy) return;
    if (!document.hidden) {
      busy = true;
      try {
        await refresh();
        if (!stopped) onState(null);
      } catch (problem) {
        if (!stopped) onState(problem);
      } finally {
        busy = false;
      }
    }
    if (!stopped) timer = setTimeout(turn, everyMs);
  }

  const seen = () => { if (!document.hidden) turn(); };
  document.addEventListener('visibilitychange', seen);
  turn();
  return Object.assign(() => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', seen);
  }, { now: turn });
}
