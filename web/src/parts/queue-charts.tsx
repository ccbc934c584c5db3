export default function QueueCharts(_: { queue: string }) {
  return null;
}
