export default function Page(_: any) {
  return null;
}
